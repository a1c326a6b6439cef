#include <farspan/rpc/device/uses.h>

#include <vector>

#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/device_routes.capnp.h>

namespace farspan {
namespace {

// Of one worker. What has been recalled and comes all the same is on its way on a line that has
// ended.
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
    if (recalled != recalled_.end() && recalled->second.contains(lending)) {
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
  std::vector<std::shared_ptr<Recall>> over;
  {
    MutexLock lock(mutex_);
    const auto use = uses_.find(lending);
    if (--use->second > 0) return;
    uses_.erase(use);
    const auto [first, last] = waiting_.equal_range(lending);
    for (auto one = first; one != last; ++one) {
      if (--one->second->uses == 0) over.push_back(one->second);
    }
    waiting_.erase(first, last);
  }
  for (const auto& recall : over) recall->request->reply({});
}

void Uses::serve_recall(agent::Request request) {
  const auto recall = std::make_shared<Recall>();
  recall->request = std::make_shared<agent::Request>(std::move(request));
  agent::Request& asked = *recall->request;
  try {
    std::vector<uint64_t> lendings;
    guard_read([&] {
      MetaReader reader(asked.frame().meta.span());
      for (const uint64_t one : reader.root<schema::DeviceRecall>().getLendings()) {
        lendings.push_back(one);
      }
    });
    MutexLock lock(mutex_);
    std::set<uint64_t>& recalled = recalled_[asked.from()];
    for (const uint64_t one : lendings) {
      recalled.insert(one);
      if (!uses_.contains({asked.from(), one})) continue;
      waiting_.emplace(Lending{asked.from(), one}, recall);
      ++recall->uses;
    }
    while (recalled.size() > kMostRecalled) recalled.erase(recalled.begin());
    if (recall->uses > 0) return;
  } catch (const Error& error) {
    return asked.fail(error);
  }
  asked.reply({});
}

}  // namespace farspan
