#include <farspan/c10d/store/tcp_wire.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace farspan::dist {

static_assert(std::endian::native == std::endian::little, "integers are written as they lie");

namespace {
template <class Integer>
void put_integer(std::string& out, Integer value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
}  // namespace

void put_code(std::string& out, TcpCode code) { put_integer(out, static_cast<uint8_t>(code)); }
void put_u8(std::string& out, uint8_t value) { put_integer(out, value); }
void put_u32(std::string& out, uint32_t value) { put_integer(out, value); }
void put_i64(std::string& out, int64_t value) { put_integer(out, value); }
void put_text(std::string& out, std::string_view text) {
  put_integer(out, static_cast<uint64_t>(text.size()));
  out.append(text);
}

const char* TcpCommandReader::layout_of(TcpCode code) {
  switch (code) {
    case TcpCode::kValidate:
    case TcpCode::kPing:
      return "4";
    case TcpCode::kSet:
    case TcpCode::kAppend:
    case TcpCode::kQueuePush:
      return "kv";
    case TcpCode::kCompareSet:
      return "kvv";
    case TcpCode::kGet:
    case TcpCode::kDeleteKey:
    case TcpCode::kQueuePop:
    case TcpCode::kQueueLen:
      return "k";
    case TcpCode::kAdd:
      return "kn";
    case TcpCode::kCheck:
    case TcpCode::kWait:
    case TcpCode::kMultiGet:
      return "*k";
    case TcpCode::kMultiSet:
      return "*kv";
    case TcpCode::kNumKeys:
    case TcpCode::kCancelWait:
    case TcpCode::kListKeys:
      return "";
  }
  return nullptr;
}

TcpCommandReader::Status TcpCommandReader::read(std::string_view* bytes) {
  if (!begun_) {
    if (bytes->empty()) return Status::kMore;
    command_.code = static_cast<TcpCode>(bytes->front());
    layout_ = layout_of(command_.code);
    if (!layout_) return Status::kBroken;
    bytes->remove_prefix(1);
    next_ = layout_;
    rounds_left_ = 1;
    begun_ = true;
  }
  while (rounds_left_ > 0) {
    if (*next_ == '\0') {
      next_ = layout_ + (layout_[0] == '*' ? 1 : 0);
      --rounds_left_;
      continue;
    }
    const Status status = read_field(bytes);
    if (status != Status::kCommand) return status;
    ++next_;
  }
  return Status::kCommand;
}

TcpCommand TcpCommandReader::take() {
  begun_ = false;
  held_ = 0;
  return std::exchange(command_, {});
}

// kCommand: the field is whole.
TcpCommandReader::Status TcpCommandReader::read_field(std::string_view* bytes) {
  uint64_t value = 0;
  switch (*next_) {
    case 'k':
      return read_text(bytes, kMaxTcpKeyBytes);
    case 'v':
      return read_text(bytes, kMaxTcpValueBytes);
    case '4':
      if (!take_fixed(bytes, sizeof(uint32_t), &value)) return Status::kMore;
      command_.number = static_cast<int64_t>(value);
      return Status::kCommand;
    case 'n':
      if (!take_fixed(bytes, sizeof(int64_t), &value)) return Status::kMore;
      command_.number = static_cast<int64_t>(value);
      return Status::kCommand;
    default:  // '*'
      if (!take_fixed(bytes, sizeof(uint64_t), &value)) return Status::kMore;
      if (value > kMaxTcpKeys) return Status::kBroken;
      rounds_left_ = value;
      return Status::kCommand;
  }
}

bool TcpCommandReader::take_fixed(std::string_view* bytes, size_t size, uint64_t* value) {
  const size_t part = std::min(size - fixed_.size(), bytes->size());
  fixed_.append(bytes->substr(0, part));
  bytes->remove_prefix(part);
  if (fixed_.size() < size) return false;
  *value = 0;
  std::memcpy(value, fixed_.data(), size);
  fixed_.clear();
  return true;
}

TcpCommandReader::Status TcpCommandReader::read_text(std::string_view* bytes, size_t limit) {
  if (!text_left_) {
    uint64_t size = 0;
    if (!take_fixed(bytes, sizeof size, &size)) return Status::kMore;
    // What an empty text costs here counts, too: many of them make a command large.
    held_ += sizeof(std::string);
    if (size > limit || held_ + size > kMaxTcpCommandBytes) return Status::kBroken;
    held_ += size;
    text_left_ = size;
  }
  const size_t part = std::min<uint64_t>(*text_left_, bytes->size());
  text_.append(bytes->substr(0, part));
  bytes->remove_prefix(part);
  *text_left_ -= part;
  if (*text_left_ > 0) return Status::kMore;
  text_left_.reset();
  command_.texts.push_back(std::exchange(text_, {}));
  return Status::kCommand;
}

}  // namespace farspan::dist
