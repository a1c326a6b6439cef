#include <farspan/c10d/ddp/module_state.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/values.h>
#include <farspan/c10d/values/codec_struct.h>

namespace farspan::dist {
namespace {

using at::Tensor;

// What ranks tell each other at construction.
struct RankModule {
  uint16_t refusal = 0;  // the Code
  std::string message, advice;
  std::vector<std::string> lines;  // what must be the same
};
FARSPAN_STRUCT(RankModule, refusal, message, advice, lines);

constexpr size_t kPackedBytes = size_t{256} << 10;  // larger ones travel alone, without a copy
constexpr size_t kNamed = 8;                        // parameters in an error

[[noreturn]] void refuse(const std::string& what, const char* advice = "") {
  throw Error(Code::kInvalidArgument, what).operation("DistributedDataParallel").advice(advice);
}

// The weights whose gradients are sparse, by what their modules say.
std::unordered_set<const at::TensorImpl*> sparse_weights(const torch::nn::Module& module) {
  std::unordered_set<const at::TensorImpl*> found;
  const auto look = [&](const torch::nn::Module& one) {
    if (const auto* plain = dynamic_cast<const torch::nn::EmbeddingImpl*>(&one)) {
      if (plain->options.sparse()) found.insert(plain->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&one)) {
      if (bag->options.sparse()) found.insert(bag->weight.unsafeGetTensorImpl());
    }
  };
  look(module);
  for (const auto& child : module.modules(/*include_self=*/false)) look(*child);
  return found;
}

void check_names(const torch::nn::Module& module, const std::vector<std::string>& names,
                 bool buffers_too) {
  for (const std::string& name : names) {
    const auto parameters = module.named_parameters();
    const auto buffers = module.named_buffers();
    if (parameters.contains(name) || (buffers_too && buffers.contains(name))) continue;
    refuse("the module has no " + std::string(buffers_too ? "parameter or buffer" : "parameter") +
               " '" + name + "'",
           "names are those of named_parameters()");
  }
}

bool has_elements_that_share_memory(const Tensor& tensor) {
  const at::MemOverlap overlap = at::has_internal_overlap(tensor);
  if (overlap != at::MemOverlap::TooHard) return overlap == at::MemOverlap::Yes;
  int64_t places = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) places += (tensor.size(i) - 1) * tensor.stride(i);
  const Tensor place = at::arange(places, at::kLong).as_strided(tensor.sizes(), tensor.strides());
  return std::get<0>(at::_unique(place)).numel() < tensor.numel();
}

void check_usable(const Tensor& tensor, const std::string& name) {
  if (!tensor.defined()) refuse("'" + name + "' is not defined", "initialise it first");
  const c10::DeviceType where = tensor.device().type();
  const bool has_memory = where == at::kCPU || at::accelerator::isAccelerator(where);
  if (!has_memory || tensor.layout() != at::kStrided) {
    std::ostringstream what;
    what << "'" << name << "' is " << tensor.layout() << " on " << tensor.device();
    refuse(what.str(), "DistributedDataParallel takes strided tensors of the CPU and of devices");
  }
  if (has_elements_that_share_memory(tensor)) {
    refuse("'" + name + "' has elements that share memory, which cannot be written each by itself",
           "an expanded tensor has too few of its own: register a clone() of it");
  }
}

std::string describe(const Tensor& tensor, const std::string& name, bool sparse) {
  std::ostringstream text;
  text << "'" << name << "' " << at::toString(tensor.scalar_type()) << " " << tensor.sizes()
       << " with strides " << tensor.strides() << (sparse ? " with sparse gradients" : "");
  if (!tensor.is_cpu()) text << " on " << c10::DeviceTypeName(tensor.device().type(), true);
  return text.str();
}

std::string describe(const DdpOptions& options) {
  std::ostringstream text;
  text << "options: bucket_bytes " << options.bucket_bytes << ", first_bucket_bytes "
       << options.first_bucket_bytes << ", find_unused_parameters "
       << options.find_unused_parameters << ", static_graph " << options.static_graph
       << ", broadcast_buffers " << options.broadcast_buffers << ", init_sync "
       << options.init_sync;
  return text.str();
}

std::vector<std::string> lines_of(const ModuleState& state, const DdpOptions& options) {
  std::vector<std::string> lines{describe(options)};
  for (size_t i = 0; i < state.parameters.size(); ++i) {
    lines.push_back(describe(state.parameters[i], state.names[i], state.sparse[i]));
  }
  lines.push_back("buffers and frozen parameters: " +
                  std::to_string(state.frozen.size() + state.buffers.size()));
  return lines;
}

void check_same(const std::vector<RankModule>& all) {
  const auto differ = [&](size_t rank, const std::string& here, const std::string& there) {
    throw Error(Code::kShapeMismatch,
                "rank " + std::to_string(rank) + " has " + here + ", and rank 0 has " + there)
        .advice("build the same module, with the same options, on all ranks");
  };
  const std::vector<std::string>& first = all.front().lines;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const std::vector<std::string>& its = all[rank].lines;
    if (its.size() != first.size()) {
      differ(rank, std::to_string(its.size() - 2) + " parameters",
             std::to_string(first.size() - 2));
    }
    for (size_t line = 0; line < its.size(); ++line) {
      if (its[line] != first[line]) differ(rank, its[line], first[line]);
    }
  }
}

void follow_memory(const std::vector<Tensor>& own, std::vector<Tensor>& memory) {
  for (size_t i = 0; i < own.size(); ++i) {
    const bool same = own[i].is_alias_of(memory[i]) && own[i].sizes() == memory[i].sizes() &&
                      own[i].strides() == memory[i].strides() &&
                      own[i].storage_offset() == memory[i].storage_offset();
    if (!same) memory[i] = own[i].variable_data();
  }
}

void broadcast_packed(const std::vector<Tensor>& tensors, int src, const CollectiveOptions& to) {
  int64_t bytes = 0;
  for (const Tensor& one : tensors) bytes += static_cast<int64_t>(one.nbytes());
  if (bytes == 0) return;
  const Tensor packed = at::empty({bytes}, at::kByte);
  const bool is_source = get_rank(to.group) == to.group->group_rank(src);
  auto* place = packed.data_ptr<uint8_t>();
  const auto each = [&](const auto& copy) {
    uint8_t* at = place;
    for (const Tensor& one : tensors) {
      copy(one, at);
      at += one.nbytes();
    }
  };
  if (is_source) {
    each([](const Tensor& one, uint8_t* to_bytes) {
      const Tensor whole = one.contiguous();
      if (one.numel() > 0) std::memcpy(to_bytes, whole.const_data_ptr(), whole.nbytes());
    });
  }
  broadcast(packed, src, to);
  if (is_source) return;
  each([](const Tensor& one, uint8_t* from) {
    if (one.numel() == 0) return;
    if (one.is_contiguous()) {
      std::memcpy(one.mutable_data_ptr(), from, one.nbytes());
    } else {
      const Tensor whole = at::empty(one.sizes(), one.options());
      std::memcpy(whole.mutable_data_ptr(), from, whole.nbytes());
      Tensor(one).copy_(whole);
    }
  });
}

// The same of devices, by those of one dtype.
void broadcast_joined(const std::vector<Tensor>& tensors, int src, const CollectiveOptions& to) {
  std::vector<Tensor> rows;
  for (const Tensor& one : tensors) rows.push_back(one.reshape({-1}));
  const Tensor joined = at::cat(rows);
  broadcast(joined, src, to);
  if (get_rank(to.group) == to.group->group_rank(src)) return;
  int64_t begin = 0;
  for (const Tensor& one : tensors) {
    Tensor(one).copy_(joined.narrow(0, begin, one.numel()).view(one.sizes()));
    begin += one.numel();
  }
}

}  // namespace

std::vector<Tensor> ModuleState::all() const {
  std::vector<Tensor> tensors = parameters;
  tensors.insert(tensors.end(), frozen.begin(), frozen.end());
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return tensors;
}

void ModuleState::follow() {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& one = parameters[i];
    const Kind& before = kinds[i];
    if (one.scalar_type() == before.type && one.sizes() == before.shape &&
        one.device() == before.device) {
      continue;
    }
    std::ostringstream what;
    what << "'" << names[i] << "' was " << at::toString(before.type) << " "
         << at::IntArrayRef(before.shape) << " on " << before.device << ", and is "
         << at::toString(one.scalar_type()) << " " << one.sizes() << " on " << one.device()
         << " now";
    refuse(what.str(), "convert the module first, then wrap it");
  }
  follow_memory(own_frozen, frozen);
  follow_memory(own_buffers, buffers);
}

std::string ModuleState::names_of(const std::vector<size_t>& which) const {
  std::string text;
  const size_t shown = std::min(which.size(), kNamed);
  for (size_t i = 0; i < shown; ++i) text += (i == 0 ? "'" : ", '") + names[which[i]] + "'";
  if (shown < which.size()) text += " and " + std::to_string(which.size() - shown) + " others";
  return text;
}

ModuleState read_module(const torch::nn::Module& module, const DdpOptions& options) {
  check_names(module, options.ignore, /*buffers_too=*/true);
  check_names(module, options.sparse_parameters, /*buffers_too=*/false);
  const auto named = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  ModuleState state;
  state.type = module.name();
  const auto sparse = sparse_weights(module);
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    const Tensor& tensor = item.value();
    if (named(options.ignore, item.key())) continue;
    check_usable(tensor, item.key());
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (!tensor.requires_grad()) {
      state.own_frozen.push_back(tensor);
      state.frozen.push_back(tensor.variable_data());
      continue;
    }
    if (!state.parameters.empty() && tensor.device() != state.parameters.front().device()) {
      refuse("'" + item.key() + "' is on " + tensor.device().str() + ", and '" +
                 state.names.front() + "' on " + state.parameters.front().device().str(),
             "move the module to one device first; wrap parts of it that are on several each");
    }
    state.parameters.push_back(tensor);
    state.names.push_back(item.key());
    state.kinds.push_back({tensor.scalar_type(), tensor.sizes().vec(), tensor.device()});
    state.sparse.push_back(sparse.contains(tensor.unsafeGetTensorImpl()) ||
                           named(options.sparse_parameters, item.key()));
  }
  for (const auto& item : module.named_buffers()) {
    const Tensor& tensor = item.value();
    if (!tensor.defined() || named(options.ignore, item.key())) continue;
    check_usable(tensor, item.key());
    // Another version counter: a backward pass that has saved a buffer does not mind that the next
    // forward pass brings rank 0's, as it does not mind that batch norm updates it.
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) {
      state.own_buffers.push_back(tensor);
      state.buffers.push_back(tensor.variable_data());
    }
  }
  if (state.parameters.empty()) {
    refuse("no parameter of the module requires a gradient", "run the module itself");
  }
  return state;
}

ModuleState read_on_all_ranks(const std::function<ModuleState()>& read, const DdpOptions& options,
                              const Group& group) {
  std::optional<Error> refusal;
  ModuleState state;
  RankModule own;
  try {
    state = read();
    own.lines = lines_of(state, options);
  } catch (...) {
    refusal = to_error(std::current_exception());
    own = {static_cast<uint16_t>(refusal->code()), refusal->message(), refusal->advice(), {}};
  }
  CollectiveOptions with;
  with.group = group;
  const auto all = all_gather_value(own, with);
  if (refusal) throw *refusal;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const RankModule& its = all[rank];
    if (its.refusal == 0) continue;
    throw Error(code_from_wire(its.refusal), "rank " + std::to_string(rank) + ": " + its.message)
        .advice(its.advice);
  }
  check_same(all);
  return state;
}

void broadcast_tensors(const std::vector<Tensor>& tensors, int src, const Group& group) {
  const at::NoGradGuard no_grad;
  CollectiveOptions with;
  with.group = group;
  const int from = group->global_rank(src);
  std::vector<Tensor> small;
  std::vector<std::vector<Tensor>> of_devices;  // alike; in the module's order, that of all ranks
  for (const Tensor& one : tensors) {
    if (one.nbytes() > kPackedBytes) {
      broadcast(one, from, with);
    } else if (one.is_cpu()) {
      small.push_back(one);
    } else if (one.numel() > 0) {
      const auto alike = [&](const std::vector<Tensor>& others) {
        return others.front().device() == one.device() &&
               others.front().scalar_type() == one.scalar_type();
      };
      const auto found = std::find_if(of_devices.begin(), of_devices.end(), alike);
      if (found == of_devices.end()) {
        of_devices.push_back({one});
      } else {
        found->push_back(one);
      }
    }
  }
  broadcast_packed(small, from, with);
  for (const std::vector<Tensor>& alike : of_devices) broadcast_joined(alike, from, with);
}

}  // namespace farspan::dist
