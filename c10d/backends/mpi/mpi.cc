#include <farspan/c10d/backends/mpi/mpi.h>

#include <utility>

#include <farspan/c10d/backends/mpi/collectives.h>
#include <farspan/c10d/backends/mpi/library.h>

namespace farspan::dist::mpi {
namespace {

class MpiBackend final : public Backend {
 public:
  MpiBackend(Hub& hub, const GroupSpec& spec) : hub_(hub), room_(hub.open(spec)) {}

  std::string_view name() const noexcept override { return "mpi"; }
  std::string name_of(int rank) const override { return room_->name_of(rank); }

  void broadcast(const Call& call, Block data) override {
    if (is_alone()) return;
    Meeting meeting(hub_, *room_, call);
    mpi::broadcast(meeting, call, data);
  }
  void all_reduce(const Call& call, Block data) override {
    if (is_alone()) return;
    Meeting meeting(hub_, *room_, call);
    mpi::all_reduce(meeting, call, data);
  }
  void reduce(const Call& call, Block data) override {
    if (is_alone()) return;
    Meeting meeting(hub_, *room_, call);
    mpi::reduce(meeting, call, data);
  }
  void all_gather(const Call& call, Block in, std::span<const Block> out) override {
    if (is_alone()) return copy_own(in, out[0], size_of(call.type));
    Meeting meeting(hub_, *room_, call);
    mpi::all_gather(meeting, call, in, out);
  }
  void gather(const Call& call, Block in, std::span<const Block> out) override {
    if (is_alone()) return copy_own(in, out[0], size_of(call.type));
    Meeting meeting(hub_, *room_, call);
    mpi::gather(meeting, call, in, out);
  }
  void scatter(const Call& call, std::span<const Block> in, Block out) override {
    if (is_alone()) return copy_own(in[0], out, size_of(call.type));
    Meeting meeting(hub_, *room_, call);
    mpi::scatter(meeting, call, in, out);
  }
  void reduce_scatter(const Call& call, std::span<const Block> in, Block out) override {
    if (is_alone()) return copy_own(in[0], out, size_of(call.type));
    Meeting meeting(hub_, *room_, call);
    mpi::reduce_scatter(meeting, call, in, out);
  }
  void all_to_all(const Call& call, std::span<const Block> in,
                  std::span<const Block> out) override {
    if (is_alone()) return copy_own(in[0], out[0], size_of(call.type));
    Meeting meeting(hub_, *room_, call);
    mpi::all_to_all(meeting, call, in, out);
  }
  void barrier(const Call& call) override {
    if (is_alone()) return;
    Meeting meeting(hub_, *room_, call);
    mpi::barrier(meeting);
  }

  Future<int> send(const Message& message, Block data) override {
    return hub_.send(*room_, message, data);
  }
  Future<int> recv(const Message& message, Block data) override {
    return hub_.recv(*room_, message, data);
  }

  void abort(const Error& why, uint64_t since) noexcept override { hub_.fail(*room_, why, since); }
  void leave() noexcept override { hub_.leave(*room_); }
  std::shared_ptr<Backend> subgroup(GroupSpec spec) override {
    return std::make_shared<MpiBackend>(hub_, spec);
  }

 private:
  bool is_alone() const noexcept { return room_->spec.size() == 1; }

  Hub& hub_;
  const std::shared_ptr<Room> room_;  // the hub has it, too, until leave()
};

}  // namespace

GroupSpec meet(Deadline deadline) { return hub(deadline).meet(deadline); }

std::shared_ptr<Backend> make_mpi_backend(const BackendContext& context) {
  Hub& all = hub(context.deadline);
  const GroupSpec& group = context.group;
  if (group.rank != all.rank() || group.size() != all.size()) {
    throw Error(Code::kInvalidArgument, "rank " + std::to_string(group.rank) + " of " +
                                            std::to_string(group.size()) + ", and MPI says " +
                                            std::to_string(all.rank()) + " of " +
                                            std::to_string(all.size()))
        .advice("start the ranks with mpirun, which numbers them");
  }
  return std::make_shared<MpiBackend>(all, group);
}

}  // namespace farspan::dist::mpi
