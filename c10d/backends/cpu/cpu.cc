#include <farspan/c10d/backends/cpu/cpu.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>
#include <farspan/c10d/backends/cpu/node.h>

namespace farspan::dist::cpu {
namespace {

uint64_t hash_of(const std::string& name) noexcept {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char letter : name) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001b3u;
  return hash;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::shared_ptr<Node> node, GroupSpec spec)
      : node_(std::move(node)), spec_(std::move(spec)), id_(hash_of(spec_.name)) {}

  std::string_view name() const noexcept override { return "cpu"; }

  void broadcast(const Call& call, Block data) override {
    if (!is_alone()) host::broadcast(team(call), call, data);
  }
  void all_reduce(const Call& call, Block data) override {
    if (!is_alone()) host::all_reduce(team(call), call, data);
  }
  void reduce(const Call& call, Block data) override {
    if (!is_alone()) host::reduce(team(call), call, data);
  }
  void all_gather(const Call& call, Block in, std::span<const Block> out) override {
    if (is_alone()) return host::copy_own(in, out[0], size_of(call.type));
    host::all_gather(team(call), call, in, out);
  }
  void gather(const Call& call, Block in, std::span<const Block> out) override {
    if (is_alone()) return host::copy_own(in, out[0], size_of(call.type));
    host::gather(team(call), call, in, out);
  }
  void scatter(const Call& call, std::span<const Block> in, Block out) override {
    if (is_alone()) return host::copy_own(in[0], out, size_of(call.type));
    host::scatter(team(call), call, in, out);
  }
  void reduce_scatter(const Call& call, std::span<const Block> in, Block out) override {
    if (is_alone()) return host::copy_own(in[0], out, size_of(call.type));
    host::reduce_scatter(team(call), call, in, out);
  }
  void all_to_all(const Call& call, std::span<const Block> in,
                  std::span<const Block> out) override {
    if (is_alone()) return host::copy_own(in[0], out[0], size_of(call.type));
    host::all_to_all(team(call), call, in, out);
  }
  void barrier(const Call& call) override {
    if (!is_alone()) host::barrier(team(call), call);
  }

  Future<int> send(const Message& message, Block data) override {
    return node_->post().send(id_, spec_, message, data);
  }
  Future<int> recv(const Message& message, Block data) override {
    return node_->post().recv(id_, spec_, message, data);
  }

  void abort(const Error& why) noexcept override;
  void leave() noexcept override;
  std::shared_ptr<Backend> subgroup(GroupSpec spec) override {
    return std::make_shared<CpuBackend>(node_, std::move(spec));
  }

 private:
  bool is_alone() const noexcept { return spec_.size() == 1; }
  Team& team(const Call& call);
  void check_ranks() const;

  const std::shared_ptr<Node> node_;
  const GroupSpec spec_;
  const uint64_t id_;                  // of the group, on lines
  std::atomic<Team*> ready_{nullptr};  // team_, for a look without the lock
  Mutex mutex_;
  std::shared_ptr<Team> team_ FARSPAN_GUARDED_BY(mutex_);
  bool left_ FARSPAN_GUARDED_BY(mutex_) = false;
};

// The first collective connects.
Team& CpuBackend::team(const Call& call) {
  if (Team* const ready = ready_.load(std::memory_order_acquire)) return *ready;
  try {
    check_ranks();
    auto team = node_->make_team(id_, spec_.ranks, call.deadline);
    MutexLock lock(mutex_);
    if (left_) throw Error(Code::kShutdown, "this rank has left the group");
    team_ = std::move(team);
    ready_ = team_.get();
    return *team_;
  } catch (const Error& error) {
    // The others do not share any memory with this rank in which they could see that.
    node_->tell_failure(id_, spec_.ranks, error);
    throw;
  }
}

void CpuBackend::check_ranks() const {
  if (spec_.size() > kMostRanks) {
    throw Error(Code::kUnavailable, std::to_string(spec_.size()) + " ranks on one host, and " +
                                        std::to_string(kMostRanks) + " at most");
  }
  for (const int rank : spec_.ranks) {
    if (!node_->shares_host(rank)) {
      throw Error(Code::kUnavailable, node_->name_of(rank) + " is on another host");
    }
  }
}

// In the group's memory, for those that are in a collective; and by messages, for those that have
// not got that memory, or wait for a message. One rank tells all.
void CpuBackend::abort(const Error& why) noexcept {
  bool is_told = false;
  {
    MutexLock lock(mutex_);
    if (left_) return;  // what ends here now is no failure of the others'
    if (team_) team_->fail(why);
    is_told = team_ && team_->have_met() && !team_->failed_first();
  }
  if (!is_told) node_->tell_failure(id_, spec_.ranks, why);
  node_->post().fail(id_, why);
}

// Others may still be at this rank's last call, and need nothing more of it.
void CpuBackend::leave() noexcept {
  {
    MutexLock lock(mutex_);
    if (left_) return;
    left_ = true;
    if (team_) team_->leave();
  }
  node_->post().leave(id_, spec_);
  if (is_alone()) return;
  if (!ready_.load()) node_->tell_left(id_, spec_.ranks.front());
  node_->forget(id_);
}

}  // namespace

std::shared_ptr<Backend> make_cpu_backend(const BackendContext& context) {
  auto node =
      Node::make(*context.store, context.group.rank, context.group.size(), context.deadline);
  return std::make_shared<CpuBackend>(std::move(node), context.group);
}

}  // namespace farspan::dist::cpu
