#include <farspan/rpc/device/uses.h>

#include <algorithm>

#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/device_bytes.h>
#include <farspan/rpc/device/device_routes.capnp.h>

namespace farspan {
namespace {

// Of one worker, and more where that is asked for at once. What comes after it was recalled has
// been on its way on a line that has ended.
constexpr size_t kMostRecalled = 1 << 16;

}  // namespace

class Uses::Use {
 public:
  Use(std::shared_ptr<Uses> uses, const Lending& lending)
      : uses_(std::move(uses)), lending_(lending) {}
  ~Use() { uses_->end(lending_); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  const std::shared_ptr<Uses> uses_;
  const Lending lending_;
};

std::shared_ptr<const void> Uses::begin(int peer, uint64_t lending) {
  const Lending key{peer, lending};
  {
    MutexLock lock(mutex_);
    const auto recalled = recalled_.find(peer);
    if (recalled != recalled_.end() && recalled->second.lendings.contains(lending)) {
      throw Error(Code::kDisconnected, "the line that it was lent on has ended");
    }
    ++uses_[key];
  }
  try {
    return std::make_shared<const Use>(shared_from_this(), key);
  } catch (...) {
    end(key);
    throw;
  }
}

void Uses::end(const Lending& lending) noexcept {
  MutexLock lock(mutex_);
  const auto use = uses_.find(lending);
  if (--use->second == 0) uses_.erase(use);
}

std::vector<uint64_t> Uses::recall(int peer, const std::vector<uint64_t>& lendings) {
  std::vector<uint64_t> in_use;
  MutexLock lock(mutex_);
  Recalled& recalled = recalled_[peer];
  for (const uint64_t one : lendings) {
    if (recalled.lendings.insert(one).second) recalled.in_order.push_back(one);
    if (uses_.contains({peer, one})) in_use.push_back(one);
  }
  const size_t most = std::max(kMostRecalled, lendings.size());
  for (; recalled.in_order.size() > most; recalled.in_order.pop_front()) {
    recalled.lendings.erase(recalled.in_order.front());
  }
  return in_use;
}

void Uses::serve_recall(agent::Request request) {
  try {
    std::vector<uint64_t> lendings;
    guard_read([&] {
      MetaReader reader(request.frame().meta.span());
      lendings = read_lendings(reader.root<schema::DeviceRecall>().getLendings());
    });
    const std::vector<uint64_t> in_use = recall(request.from(), lendings);
    MetaBuilder builder;
    auto said = builder.init_root<schema::DeviceRecalled>();
    write_lendings(in_use, said.initInUse(static_cast<unsigned>(in_use.size())));
    request.reply(builder.finish());
  } catch (const Error& error) {
    request.fail(error);
  }
}

}  // namespace farspan
