#include <farspan/c10d/backends/mpi/wire.h>

#include <climits>
#include <cstring>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::dist::mpi {
namespace {

constexpr int kTag = 1;
constexpr size_t kMostArriving = 64;  // the others wait inside MPI

std::unique_ptr<std::byte[]> allocate(size_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

}  // namespace

void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(Code::kUnavailable,
              std::string(call) + ": " + std::string(text, static_cast<size_t>(length)));
}

Wire::Wire(MPI_Comm ranks) : ranks_(ranks) {
  check(MPI_Comm_rank(ranks_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(ranks_, &size_), "MPI_Comm_size");
  under_way_.resize(static_cast<size_t>(size_));
}

void Wire::send(int rank, const Header& header, std::span<const std::byte> content,
                std::span<const std::byte> more) {
  const size_t bytes = sizeof header + content.size() + more.size();
  if (bytes > INT_MAX) {  // only the table of an all_to_all among millions of ranks
    throw Error(Code::kUnavailable, "a packet of " + std::to_string(bytes) + " bytes");
  }
  auto memory = allocate(bytes);
  std::byte* end = memory.get();
  const auto append = [&end](const void* from, size_t count) {
    if (count > 0) std::memcpy(end, from, count);
    end += count;
  };
  append(&header, sizeof header);
  append(content.data(), content.size());
  append(more.data(), more.size());
  if (rank == rank_) {
    own_.push_back({rank, header, std::move(memory), bytes});
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(memory.get(), static_cast<int>(bytes), MPI_BYTE, rank, kTag, ranks_, &request),
        "MPI_Isend");
  requests_.push_back(request);
  leaving_.push_back({rank, bytes, std::move(memory)});
  under_way_[static_cast<size_t>(rank)] += bytes;
}

// Open MPI first looks at what it has taken in, and only then takes in more: one look in vain would
// overlook what came long ago.
void Wire::look_for_packets() {
  for (int in_vain = 0; in_vain < 2 && arriving_.size() < kMostArriving;) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, kTag, ranks_, &found, &message, &status), "MPI_Improbe");
    in_vain = found ? 0 : in_vain + 1;
    if (!found) continue;
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    Arriving one{MPI_REQUEST_NULL, {}};
    one.packet.rank = status.MPI_SOURCE;
    one.packet.bytes = static_cast<size_t>(bytes);
    one.packet.memory = allocate(one.packet.bytes);
    check(MPI_Imrecv(one.packet.memory.get(), bytes, MPI_BYTE, &message, &one.request),
          "MPI_Imrecv");
    arriving_.push_back(std::move(one));
  }
}

std::optional<Packet> Wire::receive() {
  std::optional<Packet> packet;
  if (!own_.empty()) {
    packet = std::move(own_.front());
    own_.pop_front();
    return packet;
  }
  if (arriving_.empty()) look_for_packets();
  if (arriving_.empty()) return packet;
  // Large ones may be complete later than small ones behind them, which must not overtake them.
  int is_complete = 0;
  check(MPI_Test(&arriving_.front().request, &is_complete, MPI_STATUS_IGNORE), "MPI_Test");
  if (!is_complete) {
    look_for_packets();
    return packet;
  }
  packet = std::move(arriving_.front().packet);
  arriving_.pop_front();
  if (packet->bytes < sizeof(Header)) throw Error(Code::kCorrupt, "a packet without a header");
  std::memcpy(&packet->header, packet->memory.get(), sizeof(Header));
  return packet;
}

void Wire::tidy() {
  if (requests_.empty()) return;
  done_.resize(requests_.size());
  int count = 0;
  check(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, done_.data(),
                     MPI_STATUSES_IGNORE),
        "MPI_Testsome");
  if (count <= 0) return;
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) {
      under_way_[static_cast<size_t>(leaving_[i].rank)] -= leaving_[i].bytes;
      continue;
    }
    if (kept != i) {
      requests_[kept] = requests_[i];
      leaving_[kept] = std::move(leaving_[i]);
    }
    ++kept;
  }
  requests_.resize(kept);
  leaving_.resize(kept);
}

}  // namespace farspan::dist::mpi
