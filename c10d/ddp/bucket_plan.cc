#include <farspan/c10d/ddp/bucket_plan.h>

#include <algorithm>
#include <map>
#include <utility>

namespace farspan::dist {
namespace {

struct Bucket {
  std::vector<size_t> parameters;
  size_t bytes = 0;
  size_t last = 0;  // the position of its last parameter in the order
};

struct Kind {
  Bucket open;
  bool has_closed = false;
};

}  // namespace

BucketPlan plan_buckets(std::span<const ParameterSize> parameters, std::span<const size_t> order,
                        size_t first_limit, size_t limit) {
  std::vector<Bucket> closed;
  std::map<uint64_t, Kind> kinds;
  for (size_t position = 0; position < order.size(); ++position) {
    const ParameterSize& parameter = parameters[order[position]];
    if (parameter.sparse) {
      closed.push_back({{order[position]}, parameter.bytes, position});
      continue;
    }
    Kind& kind = kinds[parameter.kind];
    kind.open.parameters.push_back(order[position]);
    kind.open.bytes += parameter.bytes;
    kind.open.last = position;
    if (kind.open.bytes < (kind.has_closed ? limit : first_limit)) continue;
    closed.push_back(std::exchange(kind.open, {}));
    kind.has_closed = true;
  }
  for (auto& [key, kind] : kinds) {
    if (!kind.open.parameters.empty()) closed.push_back(std::move(kind.open));
  }
  std::sort(closed.begin(), closed.end(),
            [](const Bucket& one, const Bucket& other) { return one.last < other.last; });
  BucketPlan plan;
  for (Bucket& bucket : closed) plan.push_back(std::move(bucket.parameters));
  return plan;
}

std::vector<size_t> reversed_order(size_t parameters) {
  std::vector<size_t> order(parameters);
  for (size_t i = 0; i < parameters; ++i) order[i] = parameters - 1 - i;
  return order;
}

}  // namespace farspan::dist
