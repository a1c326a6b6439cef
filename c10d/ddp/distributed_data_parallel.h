// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DistributedDataParallel: one module on all ranks, each with data of its own, that learns as if
// one rank had all of it.
// Source: PyTorch's torch.nn.parallel.DistributedDataParallel, whose names and meanings these are;
//         where we differ: c10d/ddp/README.md.
//
//   dist::init_process_group("cpu");
//   dist::DistributedDataParallel<Net> ddp(net);
//   torch::optim::SGD optimizer(ddp.parameters(), 0.1);
//   for (auto& [images, labels] : batches_of(dist::get_rank())) {
//     optimizer.zero_grad();
//     torch::nll_loss(ddp(images), labels).backward();  // averages the gradients meanwhile
//     optimizer.step();                                 // the same on all ranks
//   }
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <farspan/c10d/ddp/comm_hook.h>
#include <farspan/c10d/ddp/options.h>
#include <farspan/c10d/ddp/output_tensors.h>

namespace farspan::dist {

class Reducer;

namespace detail {

// What does not depend on the module's type.
class DataParallelModule : public torch::nn::Module {
 public:
  DataParallelModule(const std::shared_ptr<torch::nn::Module>& module, const DdpOptions& options);
  ~DataParallelModule() override;
  DataParallelModule(const DataParallelModule&) = delete;
  DataParallelModule& operator=(const DataParallelModule&) = delete;

  // Gradients of forward passes that are run while the guard lives stay on this rank, and add up:
  // the next backward pass averages the sums. Of forward passes: where the backward pass is run
  // does not matter.
  //
  //   Lifetime: shorter than the module's
  class NoSync {
   public:
    explicit NoSync(DataParallelModule& module);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Reducer& reducer_;
    const bool before_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // For ranks with different numbers of inputs. `body` runs forward and backward passes, as many
  // as this rank has inputs for; then this rank does with zeros what the others still do. At the
  // end all have the parameters and buffers of the ranks that came last. What a rank that has
  // none left finds in .grad has no meaning.
  //   throws  what `body` throws: then the others' passes fail, too; Error: kCancelled, on all
  //           ranks, see JoinOptions; those of collectives
  //   cost    one or two more collectives of a few bytes for each iteration
  void join(const std::function<void()>& body, const JoinOptions& options = {});

  // How buckets are reduced, in place of an average by all_reduce; those of sparse gradients are
  // always averaged. The same on all ranks.
  //   throws  Error kInvalidArgument: it is empty, there is one already, or there has been a
  //           forward pass
  void register_comm_hook(CommHook hook);

  // What this rank has measured, and how its gradients are put together.
  DdpStatistics statistics() const;
  // The group that it communicates on: its own, of the same ranks.
  const Group& group() const noexcept;

 protected:
  void before_forward();
  void after_forward(const std::vector<at::Tensor>& outputs);
  bool wants_outputs() const noexcept;
  [[noreturn]] void refuse_output(const char* type) const;

 private:
  const std::shared_ptr<Reducer> reducer_;
};

template <class T>
struct ContainedModule {
  using type = T;
};
template <class T>
requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>
struct ContainedModule<T> {
  using type = typename T::ContainedType;
};

}  // namespace detail

// It is a module that has the other one as its child "module". Parameters are the other module's:
// of any mix of dtypes, all on the CPU or all on one device. They must not be replaced by other
// tensors or converted any more; torch::load() into the module, by all ranks and between a backward
// pass and the next forward pass, is fine.
//
//   Net  a module (class Net : torch::nn::Module), or a holder of one (torch::nn::Linear)
//
// At construction all ranks compare what they have, and rank 0's parameters and buffers come to
// all. What one rank has to refuse all refuse, and name that rank. A forward pass and the backward
// pass that follows it are collective: all ranks run as many. Each gradient is the sum of those of
// the ranks, in their order, divided by their number; the same bits on all ranks. Passes of
// torch::autograd::grad() give nothing to .grad: they stay on their rank, and do not count.
//
// Errors come out of forward() and backward(), and name the module: kInvalidArgument (names
// parameters and says what to set), and those of collectives: kDisconnected, or kTimeout and
// kShapeMismatch where ranks run other passes. After one it is of no use, on all ranks; ranks that
// go on can make a new_group() and a new DistributedDataParallel of the same module, also while
// this one lives.
//
// A parameter has one at a time: as long as one lives that has not failed, another one of the same
// module, or of a module that shares a parameter with it, is refused on all ranks. Both would take
// each other's averages for gradients. It has failed on a rank once a call has thrown there: where
// only others have seen an error so far, destroy it first.
//
// Threading: one thread at a time. Lifetime: longer than the backward passes of its forward passes.
template <class Net>
class DistributedDataParallel : public detail::DataParallelModule {
 public:
  using Contained = typename detail::ContainedModule<Net>::type;

  //   throws  Error: kInvalidArgument (no parameter requires a gradient, two are on different
  //           devices, one has elements that share memory, or is another DistributedDataParallel's;
  //           no such group), kShapeMismatch (the ranks' modules or options differ: names how)
  explicit DistributedDataParallel(std::shared_ptr<Contained> module,
                                   const DdpOptions& options = {})
      : DataParallelModule(module, options), module_(std::move(module)) {}
  explicit DistributedDataParallel(const torch::nn::ModuleHolder<Contained>& holder,
                                   const DdpOptions& options = {})
      : DistributedDataParallel(holder.is_empty() ? nullptr : holder.ptr(), options) {}

  // What the module's forward() takes and returns.
  //   throws  Error: see above; kInvalidArgument: the options need the tensors in what it returns,
  //           and its type is not known (output_tensors.h)
  template <class... Args>
  auto forward(Args&&... args) {
    before_forward();
    auto output = module_->forward(std::forward<Args>(args)...);
    if (wants_outputs()) {
      const std::optional<std::vector<at::Tensor>> tensors = tensors_in(output);
      if (!tensors) refuse_output(typeid(output).name());
      after_forward(*tensors);
    } else {
      after_forward({});
    }
    return output;
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // To run without the other ranks: for an evaluation on one rank, say.
  const std::shared_ptr<Contained>& module() const noexcept { return module_; }

 private:
  const std::shared_ptr<Contained> module_;
};

template <class Net>
DistributedDataParallel(std::shared_ptr<Net>) -> DistributedDataParallel<Net>;
template <class Net>
DistributedDataParallel(std::shared_ptr<Net>, DdpOptions) -> DistributedDataParallel<Net>;
template <class Net>
DistributedDataParallel(const torch::nn::ModuleHolder<Net>&) -> DistributedDataParallel<Net>;
template <class Net>
DistributedDataParallel(const torch::nn::ModuleHolder<Net>&, DdpOptions)
    -> DistributedDataParallel<Net>;

}  // namespace farspan::dist
