#include <farspan/rpc/agent/unsent_call.h>

#include <cstring>
#include <vector>

namespace farspan::agent {
namespace {

// Takes a frame apart that this process has put together.
class Pieces {
 public:
  explicit Pieces(const std::vector<Buffer>& pieces) : pieces_(pieces) {}
  Buffer take(size_t size) {
    if (size == 0) return {};
    if (at_ == pieces_[piece_].size()) {
      ++piece_;
      at_ = 0;
    }
    const Buffer taken = pieces_[piece_].slice(at_, size);
    at_ += size;
    return taken;
  }
  template <class T>
  T take_value() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

 private:
  const std::vector<Buffer>& pieces_;
  size_t piece_ = 0, at_ = 0;
};

struct Entry {
  uint64_t bytes, address;
};

}  // namespace

std::optional<UnsentCall> as_before(const Outbox::Unsent& request,
                                    std::span<const Buffer> offered) {
  Pieces pieces(request.pieces);
  UnsentCall call;
  wire::FrameHeader& header = call.frame.header = pieces.take_value<wire::FrameHeader>();
  if (header.flags & wire::kLends) return std::nullopt;
  const bool offers = header.flags & wire::kOffered;
  std::vector<Entry> table;
  for (uint32_t i = 0; i < header.segment_count; ++i) {
    table.push_back(offers ? pieces.take_value<Entry>() : Entry{pieces.take_value<uint64_t>(), 0});
  }
  if (offers) pieces.take(sizeof(wire::Offer));
  if (header.flags & wire::kHandsOver) {
    pieces.take(sizeof(wire::HandedOver) * header.segment_count);
  }
  call.head = pieces.take(header.meta_bytes);
  call.frame.meta = call.head.span();
  for (const auto& [bytes, address] : table) {
    if (address != 0) {
      if (offered.empty()) return std::nullopt;
      call.frame.segments.push_back(offered.front());
      offered = offered.subspan(1);
    } else {
      call.frame.segments.push_back(pieces.take(bytes));
      pieces.take(wire::padded(bytes) - bytes);
    }
  }
  header.flags &= static_cast<uint16_t>(~(wire::kOffered | wire::kHandsOver));
  return call;
}

}  // namespace farspan::agent
