#include <farspan/c10d/backends/cpu/departures.h>

#include <exception>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/store/prefix_store.h>

namespace farspan::dist::cpu {
namespace {

// The store may have ended, or be out of reach.
constexpr Millis kStoreTime{500};
// Then it is not asked for a while: others may have died with its host.
constexpr Millis kSilence{5'000};

std::shared_ptr<Store> own_part(const std::shared_ptr<Store>& store) {
  if (!store) return nullptr;
  auto part = std::make_shared<PrefixStore>("left", store);
  part->set_timeout(kStoreTime);
  return part;
}

}  // namespace

Departures::Departures(const std::shared_ptr<Store>& store, int rank)
    : rank_(rank), store_(own_part(store)) {}

void Departures::announce() noexcept {
  MutexLock lock(mutex_);
  announced_ = true;
}

void Departures::ask(int rank, Answer answer) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  questions_.push_back({rank, std::move(answer)});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  asked_.notify_one();
}

bool Departures::has_left(int rank) noexcept {
  if (!store_ || Clock::now() < asked_in_vain_until_) return false;
  try {
    return store_->check({std::to_string(rank)});
  } catch (...) {
    asked_in_vain_until_ = Clock::now() + kSilence;
    log(LogLevel::kInfo, "c10d/backends/cpu",
        "whether rank " + std::to_string(rank) +
            " has left: " + to_error(std::current_exception()).what());
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
  bool says = false;
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    says = announced_;
    questions_.clear();
    thread = std::move(thread_);
  }
  asked_.notify_one();
  if (thread.joinable()) thread.join();
  try {
    if (says && store_) store_->set(std::to_string(rank_), "");
  } catch (...) {  // its host may have left before
    log(LogLevel::kDebug, "c10d/backends/cpu", to_error(std::current_exception()).what());
  }
  store_ = nullptr;
}

}  // namespace farspan::dist::cpu
