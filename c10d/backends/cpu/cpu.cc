#include <farspan/c10d/backends/cpu/cpu.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/blocks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>
#include <farspan/c10d/backends/cpu/hosts/collectives.h>
#include <farspan/c10d/backends/cpu/node.h>

namespace farspan::dist::cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  enum class Kind { kDefault, kSubgroup };
  CpuBackend(std::shared_ptr<Node> node, GroupSpec spec, Kind kind)
      : node_(std::move(node)),
        spec_(std::move(spec)),
        kind_(kind),
        id_(spec_.id()),
        layout_(node_->hosts_of(spec_.ranks), spec_.rank) {
    for (const int rank : spec_.ranks) names_.push_back(node_->name_of(rank));
    for (const int rank : layout_.ranks_on(layout_.own().host)) {
      near_.push_back(spec_.ranks[static_cast<size_t>(rank)]);
    }
  }

  std::string_view name() const noexcept override { return "cpu"; }
  std::string name_of(int rank) const override { return names_[static_cast<size_t>(rank)]; }

  void broadcast(const Call& call, Block data) override {
    if (is_alone()) return;
    perform(
        call, [&](auto& team) { host::broadcast(team, call, data); },
        [&](auto& meeting) { hosts::broadcast(meeting, data); });
  }
  void all_reduce(const Call& call, Block data) override {
    if (is_alone()) return;
    perform(
        call, [&](auto& team) { host::all_reduce(team, call, data); },
        [&](auto& meeting) { hosts::all_reduce(meeting, data); });
  }
  void reduce(const Call& call, Block data) override {
    if (is_alone()) return;
    perform(
        call, [&](auto& team) { host::reduce(team, call, data); },
        [&](auto& meeting) { hosts::reduce(meeting, data); });
  }
  void all_gather(const Call& call, Block in, std::span<const Block> out) override {
    if (is_alone()) return copy_own(in, out[0], size_of(call.type));
    perform(
        call, [&](auto& team) { host::all_gather(team, call, in, out); },
        [&](auto& meeting) { hosts::all_gather(meeting, in, out); });
  }
  void gather(const Call& call, Block in, std::span<const Block> out) override {
    if (is_alone()) return copy_own(in, out[0], size_of(call.type));
    perform(
        call, [&](auto& team) { host::gather(team, call, in, out); },
        [&](auto& meeting) { hosts::gather(meeting, in, out); });
  }
  void scatter(const Call& call, std::span<const Block> in, Block out) override {
    if (is_alone()) return copy_own(in[0], out, size_of(call.type));
    perform(
        call, [&](auto& team) { host::scatter(team, call, in, out); },
        [&](auto& meeting) { hosts::scatter(meeting, in, out); });
  }
  void reduce_scatter(const Call& call, std::span<const Block> in, Block out) override {
    if (is_alone()) return copy_own(in[0], out, size_of(call.type));
    perform(
        call, [&](auto& team) { host::reduce_scatter(team, call, in, out); },
        [&](auto& meeting) { hosts::reduce_scatter(meeting, in, out); });
  }
  void all_to_all(const Call& call, std::span<const Block> in,
                  std::span<const Block> out) override {
    if (is_alone()) return copy_own(in[0], out[0], size_of(call.type));
    perform(
        call, [&](auto& team) { host::all_to_all(team, call, in, out); },
        [&](auto& meeting) { hosts::all_to_all(meeting, in, out); });
  }
  void barrier(const Call& call) override {
    if (is_alone()) return;
    perform(
        call, [&](auto& team) { host::barrier(team, call); },
        [&](auto& meeting) { hosts::barrier(meeting); });
  }

  Future<int> send(const Message& message, Block data) override {
    return node_->post().send(id_, spec_, message, data);
  }
  Future<int> recv(const Message& message, Block data) override {
    return node_->post().recv(id_, spec_, message, data);
  }

  void abort(const Error& why, uint64_t since) noexcept override;
  void leave() noexcept override;
  std::shared_ptr<Backend> subgroup(GroupSpec spec) override {
    return std::make_shared<CpuBackend>(node_, std::move(spec), Kind::kSubgroup);
  }

 private:
  bool is_alone() const noexcept { return spec_.size() == 1; }
  // Within this host, or among several.
  template <class Within, class Among>
  void perform(const Call& call, const Within& within, const Among& among) {
    begun_ = call.signature.sequence;
    try {
      Team& here = team(call);
      if (layout_.hosts() == 1) {
        within(here);
      } else {
        perform_among(here, call, among);
      }
    } catch (...) {
      if (has_left()) throw left_error();  // what the others make of that is not why
      throw;
    }
  }
  template <class Among>
  void perform_among(Team& here, const Call& call, const Among& among) {
    hosts::Meeting meeting({here,
                            layout_,
                            node_->tuning(),
                            node_->scratch(),
                            {&node_->post(), channel_of(id_), &spec_, &names_}},
                           call);
    try {
      among(meeting);
    } catch (...) {  // before this rank takes back what it has offered: others should know why
      // That another rank is gone may follow from what the ranks of this host know already.
      const uint64_t sequence = call.signature.sequence;
      const Error why =
          here.has_failed(sequence) ? here.failure() : to_error(std::current_exception());
      abort(why, sequence);
      throw why;
    }
  }
  bool has_left() {
    MutexLock lock(mutex_);
    return left_;
  }
  Team& team(const Call& call);

  const std::shared_ptr<Node> node_;
  const GroupSpec spec_;
  const Kind kind_;
  const uint64_t id_;  // of the group, on lines
  const hosts::Layout layout_;
  std::vector<std::string> names_;     // by rank in the group
  std::vector<int> near_;              // its ranks on this host, in the default group
  std::atomic<uint64_t> begun_{0};     // the sequence of the last collective
  std::atomic<Team*> ready_{nullptr};  // team_, for a look without the lock
  Mutex mutex_;
  std::shared_ptr<Team> team_ FARSPAN_GUARDED_BY(mutex_);
  bool left_ FARSPAN_GUARDED_BY(mutex_) = false;
  // Others have been told of a failure, of the calls from this one on.
  std::optional<uint64_t> told_since_ FARSPAN_GUARDED_BY(mutex_);
};

// The first collective connects.
Team& CpuBackend::team(const Call& call) {
  if (Team* const ready = ready_.load(std::memory_order_acquire)) return *ready;
  try {
    if (near_.size() > static_cast<size_t>(kMostRanks)) {
      throw Error(Code::kUnavailable, std::to_string(near_.size()) + " ranks on one host, and " +
                                          std::to_string(kMostRanks) + " at most");
    }
    auto team = node_->make_team(id_, near_, call);
    MutexLock lock(mutex_);
    if (left_) {
      team->leave();  // it may have given the memory to others already
      throw left_error();
    }
    team_ = std::move(team);
    ready_ = team_.get();
    return *team_;
  } catch (const Error& error) {
    // The others do not share any memory with this rank in which they could see that.
    abort(error, call.signature.sequence);
    throw;
  }
}

// In the group's memory, for those that are in a collective; and by messages, for those that have
// not got that memory, or wait for a message. One rank tells all.
void CpuBackend::abort(const Error& why, uint64_t since) noexcept {
  bool others_tell = false;
  {
    MutexLock lock(mutex_);
    if (left_) return;  // that a rank has left is no failure
    if (told_since_ && *told_since_ <= since) return;
    told_since_ = since;
    if (team_) team_->fail(why, since);
    // Whoever was first among those that share the memory tells all.
    others_tell = team_ && team_->have_met() && !team_->failed_first();
  }
  if (others_tell) node_->note_failure(id_, {why, since});
  node_->tell_failure(id_, spec_.ranks, {why, since});
  node_->post().fail(id_, why);
  // An earlier call may be under way still.
  if (since <= begun_.load()) node_->post().fail(channel_of(id_), why);
}

// Others may still be at this rank's last call, and need nothing more of it.
void CpuBackend::leave() noexcept {
  {
    MutexLock lock(mutex_);
    if (left_) return;
    left_ = true;
  }
  if (kind_ == Kind::kDefault && !is_alone()) node_->announce_departure();
  node_->post().leave(channel_of(id_), spec_);
  node_->post().leave(id_, spec_);
  {
    MutexLock lock(mutex_);
    if (team_) team_->leave();
  }
  if (!is_alone() && !ready_.load()) node_->tell_left(id_, near_.front());
  node_->forget(id_);
}

}  // namespace

std::shared_ptr<Backend> make_cpu_backend(const BackendContext& context) {
  return std::make_shared<CpuBackend>(Node::make(context), context.group,
                                      CpuBackend::Kind::kDefault);
}

}  // namespace farspan::dist::cpu
