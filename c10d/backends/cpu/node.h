// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Node: this process among those of the job: where they all are, the lines to them, and who is
// gone. One for a default group and all groups made out of it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <farspan/c10d/backends/cpu/address.h>
#include <farspan/c10d/backends/cpu/departures.h>
#include <farspan/c10d/backends/cpu/host_line.h>
#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/backends/cpu/team.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/memory_pool.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist::cpu {

// The messages of a group's collectives do not meet those of its users.
inline uint64_t channel_of(uint64_t id) noexcept { return ~id; }

// Threading: every method from any thread. Lifetime: shared by the groups; stop() ends it.
class Node : public std::enable_shared_from_this<Node> {
 public:
  // Returns when all ranks have come.
  //   context  of the default group
  //   throws   Error kTimeout (names the ranks that are missing), kInvalidArgument (ranks are on
  //            other hosts, and no address of this one is known to them), kUnavailable (that
  //            address cannot be bound), and what the store throws
  static std::shared_ptr<Node> make(const BackendContext& context);
  ~Node();

  int rank() const noexcept { return rank_; }
  bool shares_host(int rank) const;
  // What is equal for those that share one.
  std::vector<std::string> hosts_of(const std::vector<int>& ranks) const;
  // "rank 3 (host:pid)".
  std::string name_of(int rank) const;

  Post& post() noexcept { return *post_; }
  const Tuning& tuning() const noexcept { return addresses_.front().tuning; }
  // What collectives between hosts need beside the tensors, used again while it is warm.
  net::MemoryPool& scratch() noexcept { return *scratch_; }

  // The team of a group's ranks on this host. The first of them makes its memory, and the others
  // get it from that one, once it has come as well.
  //   ranks   in the default group, all on this host
  //   throws  Error kTimeout, kDisconnected (names the first rank), kOverloaded
  std::shared_ptr<Team> make_team(uint64_t id, const std::vector<int>& ranks, const Call& call);

  // Tells the ranks of a group that it has failed, from a call on: for when they cannot see it in
  // its memory, which not all of them may have yet, or are on other hosts. Where another rank has
  // told this one, and so is about to tell all, only those that may see this one end. Does not
  // block.
  void tell_failure(uint64_t id, const std::vector<int>& ranks, const Failure& failure) noexcept;
  // Another rank has told of a failure, and tells all.
  void note_failure(uint64_t id, const Failure& failure) noexcept;
  // This rank has left a group before it had its memory: tells `leader`, or who asks this one for
  // it.
  void tell_left(uint64_t id, int leader) noexcept;
  // What is kept for a group; later messages about it are dropped.
  void forget(uint64_t id) noexcept;

  // This rank has left the default group: when it leaves the last of the others, it leaves the job.
  void announce_departure() noexcept { departures_.announce(); }

  // Somebody waits long for this rank: from now on its end is noticed.
  void watch(int rank) noexcept;

  // For whom this process waits in a group's collectives.
  WaitsFor waits_for(uint64_t id) const noexcept;
  // Who holds up a collective for which this process has waited too long: follows the answers of
  // those that are waited for, to one that waits for nobody, or gives none within half a second.
  Late find_late(uint64_t id, WaitsFor whom) const noexcept;

  void stop() noexcept;

 private:
  struct Member {  // of a team
    uint64_t id;
    std::weak_ptr<Team> team;
    std::vector<int> ranks;
  };
  struct Wanted {  // the memory of a group that another rank leads
    int leader;
    uint64_t call;  // this rank's first one
    Promise<net::OwnedDescriptor> memory;
  };

  struct Offer {
    net::OwnedDescriptor memory;
    int left = 0;  // that have not asked yet
  };

  static std::shared_ptr<Node> handle(std::shared_ptr<Node> node);
  Node(const std::shared_ptr<Store>& store, int rank, int world_size);
  void listen();
  void meet(const BackendContext& context);
  void listen_to_hosts(const BackendContext& context);
  void open_post();
  std::shared_ptr<HostLine> add_line(net::OwnedDescriptor socket, int peer);
  std::shared_ptr<HostLine> line_to(int rank, Deadline deadline);
  void on_message(HostLine& line, const HostMessage& message, net::OwnedDescriptor descriptor);
  void on_end(HostLine& line);
  void note_gone(int rank) noexcept;
  Absence absence_of(uint64_t id, int rank) const noexcept;
  net::SharedMemory lead(uint64_t id, int ranks);
  net::SharedMemory follow(uint64_t id, int leader, int ranks, const Call& call);
  void enlist(uint64_t id, const std::shared_ptr<Team>& team, const std::vector<int>& ranks);
  void give(HostLine& line, const HostMessage& asked);
  void take(const HostMessage& given, net::OwnedDescriptor descriptor);
  bool is_first_failure(uint64_t id, const Failure& failure) noexcept;
  void end_failed(uint64_t id, const Failure& failure) noexcept;
  static bool fails_now(Team* team, const Failure& failure) noexcept;
  void note_failure_soon(uint64_t id, const Failure& failure) noexcept;
  std::shared_ptr<Team> team_of_locked(uint64_t id) const FARSPAN_REQUIRES(mutex_);
  void note_left(uint64_t id, int rank) noexcept;
  void send_soon(int rank, const HostMessage& message) noexcept;

  const int rank_, world_size_;
  std::vector<Address> addresses_;  // by rank; constant after make()
  const std::shared_ptr<net::Reactor> reactor_;
  const std::shared_ptr<net::Loop> loop_;
  const std::shared_ptr<Post> post_;
  const std::shared_ptr<net::MemoryPool> scratch_;
  Departures departures_;
  std::unique_ptr<net::Loop::Listening> listening_;
  std::string host_socket_;

  mutable Mutex mutex_;
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::set<int> gone_ FARSPAN_GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<HostLine>> lines_ FARSPAN_GUARDED_BY(mutex_);  // by rank
  std::vector<std::shared_ptr<HostLine>> visitors_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<Member> members_ FARSPAN_GUARDED_BY(mutex_);
  // Of the groups that this rank leads: the memory, for those who have not asked yet, and those who
  // asked before it was there.
  std::map<uint64_t, Offer> offers_ FARSPAN_GUARDED_BY(mutex_);
  std::multimap<uint64_t, std::weak_ptr<net::Source>> asked_ FARSPAN_GUARDED_BY(mutex_);
  std::map<uint64_t, Wanted> wanted_ FARSPAN_GUARDED_BY(mutex_);
  std::map<uint64_t, Failure> failures_ FARSPAN_GUARDED_BY(mutex_);    // of groups
  std::map<uint64_t, std::set<int>> left_ FARSPAN_GUARDED_BY(mutex_);  // before they had the memory
  std::set<uint64_t> forgotten_ FARSPAN_GUARDED_BY(mutex_);  // groups that this rank has left
};

}  // namespace farspan::dist::cpu
