// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The fake backend: all ranks of a job in one process, one thread each, without sockets or shared
// memory. For tests and dry runs: results are those of the other backends, and the same each time,
// unless the ranks draw from LibTorch's random generator, which they share.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <farspan/c10d/group/process_group.h>

namespace farspan::dist::fake {

struct Room;

// The ranks of one job.
//
// Threading: every method from any thread; each rank's operations from one, or in an order of its
//            own. Lifetime: shared by its backends.
class Fabric : public std::enable_shared_from_this<Fabric> {
 public:
  static std::shared_ptr<Fabric> make(int ranks);

  // The default group as this rank has it.
  Group group(int rank, Millis timeout = kDefaultGroupTimeout);

  // From now on nothing comes from this rank, as when its process had died.
  void kill(int rank);

 private:
  friend class FakeBackend;
  explicit Fabric(int ranks);
  std::shared_ptr<Room> room(const GroupSpec& spec);

  const int ranks_;
  mutable Mutex mutex_;
  // Of all groups there have been: a rank that comes late must find out that one has failed.
  std::map<std::string, std::shared_ptr<Room>> rooms_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<bool> dead_ FARSPAN_GUARDED_BY(mutex_);
};

// Runs `body(rank, size)` on a thread for each rank, each with a default group of its own.
// When one of them throws, the others find it gone.
//   throws  what the first that failed threw, after all have ended
void run_ranks(int ranks, const std::function<void(int rank, int size)>& body,
               Millis timeout = kDefaultGroupTimeout);

}  // namespace farspan::dist::fake
