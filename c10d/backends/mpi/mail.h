// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Mail: messages from rank to rank, of all groups.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <farspan/c10d/backends/messages/receive.h>
#include <farspan/c10d/backends/mpi/room.h>
#include <farspan/c10d/backends/mpi/wire.h>

namespace farspan::dist::mpi {

class Hub;

// A future that has its result, and is told without the lock.
struct Ending {
  std::shared_ptr<detail::FutureState<int>> future;
  int rank = -1;
  std::optional<Error> error;
};
using Endings = std::vector<Ending>;
void tell(Endings& endings) noexcept;

// A receive, and a message that waits for its receive or is being sent. Who waits for one helps the
// hub, which outlives them.
//
// Threading: as FutureState; what is not constant is under the hub's lock.
class Receiving final : public messages::Receive {
 public:
  Receiving(Hub& hub, const Message& message, Block data) : Receive(message, data), hub_(hub) {}

 protected:
  bool block(Deadline deadline) override;

 private:
  Hub& hub_;
};

class Sending final : public detail::FutureState<int> {
 public:
  Sending(Hub& hub, const Room& room, int to_rank, const Message& sent, Block data)
      : group(room.id),
        from(room.spec.rank),
        rank(to_rank),
        message(sent),
        bytes(data.data, data.count * size_of(sent.type)),
        hub_(hub) {}

  const uint64_t group;
  const int from;  // this rank in the group
  const int rank;  // of the job, to whom
  const Message message;
  std::span<const std::byte> bytes;  // what has not been sent
  bool is_accepted = false;

 protected:
  bool block(Deadline deadline) override;

 private:
  Hub& hub_;
};

// A small message is sent at once, and kept by the other end until it is asked for. A large one is
// offered, and so is any while that end has too much to keep; its bytes follow when a receive has
// been found for it.
//
// Threading: none; the hub has a lock.
class Mail {
 public:
  Mail(Hub& hub, Wire& wire);

  Future<int> send(Room& room, const Message& message, Block data);
  void post(Room& room, const std::shared_ptr<Receiving>& receive, Endings& endings);

  // kMessage and what follows it.
  void take(Room& room, Packet packet, Endings& endings);
  // What has come for a group that this rank has left, or leaves.
  void drop(const Packet& packet);
  void drop_arrived(Room& room);
  // The other end has so many bytes less to keep.
  void give_room(int rank, uint64_t bytes) noexcept;
  // Sends on what has been accepted, as much as fits on the wire.
  void advance(Endings& endings);

  // Ends what waits in a group and has a reason to, by the rank at the other end, or -1.
  using WhyNone = std::function<std::optional<Error>(int rank)>;
  void end_hopeless(Room& room, const WhyNone& why, Endings& endings);
  // Ends what is under way, in all groups, without a word to others.
  void end_all(const Error& why, Endings& endings);
  // Ends what has had its time.
  void expire(Room& room, Endings& endings);

  // No message is on its way; receives may wait.
  bool is_idle() const noexcept { return offers_.empty() && fillings_.empty(); }

 private:
  struct Filling {  // of a receive, by parts
    uint64_t group;
    std::shared_ptr<messages::Receive> receive;
    int from;  // rank in the group
    std::span<std::byte> rest;
  };
  using WhySent = std::function<std::optional<Error>(const Sending&)>;
  using WhyFilled = std::function<std::optional<Error>(const Filling&)>;

  void match(Room& room, messages::Envelope envelope, Room::Content content,
             const std::shared_ptr<messages::Receive>& receive, Endings& endings);
  void take_part(const Packet& packet, Endings& endings);
  bool take_room(int rank, uint64_t bytes) noexcept;
  void claim(const Packet& message);
  void give_up_sending(const WhySent& why, Endings& endings);
  void give_up_filling(const WhyFilled& why, Endings& endings);

  Hub& hub_;
  Wire& wire_;
  // By rank of the job, of messages sent without an offer:
  std::vector<uint64_t> unclaimed_;  // bytes that it has to keep, as far as is known here
  std::vector<uint64_t> claimed_;    // bytes that came from it and are gone, which it does not know
  uint64_t next_offer_ = 1;
  std::map<uint64_t, std::shared_ptr<Sending>> offers_;
  std::map<std::pair<int, uint64_t>, Filling> fillings_;  // by rank of the job, and its offer
};

}  // namespace farspan::dist::mpi
