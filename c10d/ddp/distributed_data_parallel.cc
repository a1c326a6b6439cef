#include <farspan/c10d/ddp/distributed_data_parallel.h>

#include <farspan/c10d/ddp/reducer.h>

namespace farspan::dist::detail {

DataParallelModule::DataParallelModule(const std::shared_ptr<torch::nn::Module>& module,
                                       const DdpOptions& options)
    : torch::nn::Module("DistributedDataParallel"), reducer_(Reducer::make(module.get(), options)) {
  register_module("module", module);
}

DataParallelModule::~DataParallelModule() = default;

DataParallelModule::NoSync::NoSync(DataParallelModule& module)
    : reducer_(*module.reducer_), before_(reducer_.sync()) {
  reducer_.set_sync(false);
}
DataParallelModule::NoSync::~NoSync() { reducer_.set_sync(before_); }

void DataParallelModule::join(const std::function<void()>& body, const JoinOptions& options) {
  reducer_->begin_join(options);
  try {
    body();
    reducer_->end_join();
  } catch (...) {
    reducer_->abandon_join(std::current_exception());
    throw;
  }
}

void DataParallelModule::register_comm_hook(CommHook hook) { reducer_->set_hook(std::move(hook)); }

DdpStatistics DataParallelModule::statistics() const { return reducer_->statistics(); }
const Group& DataParallelModule::group() const noexcept { return reducer_->group(); }

void DataParallelModule::before_forward() { reducer_->before_forward(); }
void DataParallelModule::after_forward(const std::vector<at::Tensor>& outputs) {
  reducer_->after_forward(outputs);
}
bool DataParallelModule::wants_outputs() const noexcept { return reducer_->wants_outputs(); }

void DataParallelModule::refuse_output(const char* type) const {
  throw Error(Code::kInvalidArgument,
              "forward() returns " + demangle(type) + ", whose tensors are not known")
      .operation("DistributedDataParallel")
      .advice(
          "define visit_tensors() for it: find_unused_parameters and static_graph look at them");
}

}  // namespace farspan::dist::detail
