#include <farspan/c10d/backends/cpu/departures.h>

#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/store/prefix_store.h>

namespace farspan::dist::cpu {
namespace {

// The store may have ended, or be out of reach.
constexpr Millis kStoreTime{500};

std::shared_ptr<Store> own_part(const std::shared_ptr<Store>& store) {
  if (!store) return nullptr;
  auto part = std::make_shared<PrefixStore>("left", store);
  part->set_timeout(kStoreTime);
  return part;
}

}  // namespace

Departures::Departures(const std::shared_ptr<Store>& store, int rank)
    : rank_(rank), store_(own_part(store)) {}

void Departures::say() noexcept {
  std::shared_ptr<Store> store;
  {
    MutexLock lock(mutex_);
    store = std::move(store_);
  }
  if (!store) return;
  try {
    store->set(std::to_string(rank_), "");
  } catch (const Error& error) {
    log(LogLevel::kDebug, "c10d/backends/cpu", error.what());  // its host may have left before
  }
}

void Departures::ask(int rank, Answer answer) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  questions_.push_back({rank, std::move(answer)});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  asked_.notify_one();
}

bool Departures::has_left(int rank) noexcept {
  std::shared_ptr<Store> store;
  {
    MutexLock lock(mutex_);
    store = store_;
  }
  try {
    return store && store->check({std::to_string(rank)});
  } catch (const Error& error) {
    log(LogLevel::kInfo, "c10d/backends/cpu",
        "whether rank " + std::to_string(rank) + " has left: " + error.what());
    return false;
  }
}

void Departures::run() noexcept {
  for (;;) {
    std::vector<Question> questions;
    {
      MutexLock lock(mutex_);
      while (questions_.empty() && !stopped_) asked_.wait(mutex_);
      if (stopped_) return;
      questions.swap(questions_);
    }
    for (const Question& one : questions) one.answer(has_left(one.rank));
  }
}

void Departures::stop() noexcept {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    questions_.clear();
    store_ = nullptr;
    thread = std::move(thread_);
  }
  asked_.notify_one();
  if (thread.joinable()) thread.join();
}

}  // namespace farspan::dist::cpu
