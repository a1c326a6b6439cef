#include <farspan/c10d/group/signature.h>

namespace farspan::dist {
namespace {

bool has_root(Op op) noexcept {
  return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter;
}
bool reduces(Op op) noexcept {
  return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter;
}

}  // namespace

std::string_view name_of(Op op) noexcept {
  switch (op) {
    case Op::kNone:
      return "nothing";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kReduce:
      return "reduce";
    case Op::kAllGather:
      return "all_gather";
    case Op::kGather:
      return "gather";
    case Op::kScatter:
      return "scatter";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kAllToAll:
      return "all_to_all";
    case Op::kBarrier:
      return "barrier";
    case Op::kSend:
      return "send";
    case Op::kRecv:
      return "recv";
    case Op::kSparseAllReduce:
      return "sparse all_reduce";
  }
  return "an operation of a newer version";
}

void set_shape(Signature& signature, std::span<const int64_t> shape) noexcept {
  size_t dims = 0;
  for (const int64_t size : shape) {
    if (dims < Signature::kMaxDims) {
      signature.shape[dims++] = size;
    } else {
      signature.shape[dims - 1] *= size;
    }
  }
  signature.dims = static_cast<uint8_t>(dims) & 0x7F;
}

std::string describe(const Signature& signature) {
  std::string text(name_of(signature.op));
  if (signature.op == Op::kBarrier || signature.op == Op::kNone) return text;
  if (reduces(signature.op)) {
    text += " " + std::string(name_of(static_cast<ReduceOp::Kind>(signature.reduce)));
  }
  text += " of " + std::string(name_of(static_cast<DType>(signature.type)));
  if (signature.sizes_hash != 0 && signature.op != Op::kSparseAllReduce) {
    text += ", " + std::to_string(signature.count) + " elements in parts";
  } else {
    text += " [";
    for (size_t i = 0; i < signature.dims; ++i) {
      text += (i ? ", " : "") + std::to_string(signature.shape[i]);
    }
    text += "]";
  }
  if (signature.op == Op::kSparseAllReduce) {
    text += ", sparse_dim " + std::to_string(signature.sizes_hash);
  }
  if (has_root(signature.op)) text += ", root " + std::to_string(signature.root);
  if (signature.on_device) text += ", on a device";
  return text;
}

std::optional<std::string> difference(std::string_view who, const Signature& one,
                                      std::string_view other_who, const Signature& other) {
  if (one == other) return std::nullopt;
  const auto call = [](std::string_view rank, const Signature& signature) {
    return std::string(rank) + " calls " + describe(signature);
  };
  std::string text = call(who, one) + ", and " + call(other_who, other);
  if (describe(one) == describe(other)) {
    if (one.sequence != other.sequence) {
      text += ": calls " + std::to_string(one.sequence) + " and " + std::to_string(other.sequence) +
              " of the group";
    } else {
      text += ": the sizes of the parts differ";
    }
  }
  return text;
}

std::string describe_parts(std::string_view from, uint64_t sent, std::string_view to,
                           uint64_t expected) {
  return std::string(from) + " sends " + std::to_string(sent) + " elements to " + std::string(to) +
         ", which expects " + std::to_string(expected);
}

}  // namespace farspan::dist
