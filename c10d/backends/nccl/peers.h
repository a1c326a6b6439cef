// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Peers: the other ranks of a group, and whether one of them is gone while devices wait for it.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include <farspan/c10d/group/backend.h>

namespace farspan::dist::nccl {

// Asks another backend for messages that nobody ever sends: they end when the rank at the other end
// is gone, or has failed. (Those that leave wait for their devices before.) Twice: in the group,
// where others tell of failures, and in one beside it, where those do not end them.
//
// Threading: every method from any thread.
class Peers : public std::enable_shared_from_this<Peers> {
 public:
  using OnLost = std::function<void(const Error& why)>;
  Peers(std::shared_ptr<Backend> control, GroupSpec spec)
      : control_(std::move(control)), spec_(std::move(spec)) {}

  // From the first call on. Costs two receives for each rank.
  void watch();
  // Ends all that.
  void leave() noexcept;
  // Why one is gone, of those that are watched.
  std::optional<Error> lost() const;
  // From now on; called also when one is gone already.
  void on_lost(OnLost tell);

 private:
  void wait_for_end(Backend& channel, int peer);
  void lose(const Error& why);

  const std::shared_ptr<Backend> control_;
  const GroupSpec spec_;
  mutable Mutex mutex_;
  bool watches_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Backend> beside_ FARSPAN_GUARDED_BY(mutex_);
  std::optional<Error> lost_ FARSPAN_GUARDED_BY(mutex_);
  OnLost tell_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::dist::nccl
