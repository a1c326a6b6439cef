#include "bench/call_stages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include <farspan/rpc/rpc.h>

#include "bench/figures.h"

namespace bench {
namespace {

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// Of this process, in the order in which they were noted.
std::vector<double> notes;  // NOLINT: of a benchmark
void note() {
  if (notes.size() < notes.capacity()) notes.push_back(now_us());
}

// Sees each call's tensors where they leave, and where they have come.
class Notes final : public farspan::Interceptor {
 public:
  std::shared_ptr<Scope> before_request(int, farspan::TensorList&, farspan::Extensions&) override {
    note();
    return scope_;
  }
  void after_reply(Scope&, int, std::span<const farspan::Extension>,
                   farspan::TensorList&) override {
    note();
  }
  std::shared_ptr<Scope> after_request(int, std::span<const farspan::Extension>,
                                       farspan::TensorList&) override {
    note();
    return scope_;
  }
  void before_reply(Scope&, int, farspan::TensorList&, farspan::Extensions&) override { note(); }

 private:
  class NoScope final : public Scope {
   public:
    void enter() override {}
    void leave() noexcept override {}
  };
  const std::shared_ptr<Scope> scope_ = std::make_shared<NoScope>();
};

constexpr size_t kNotesOfACaller = 4, kNotesOfACallee = 4;

void begin_notes(int64_t calls) {
  notes.clear();
  notes.reserve(static_cast<size_t>(calls) * std::max(kNotesOfACaller, kNotesOfACallee));
  farspan::current_worker().set_interceptor(std::make_shared<Notes>());
}
at::Tensor noted_sum_of(const at::Tensor& a, const at::Tensor& b) {
  note();
  at::Tensor sum = a.add(b);
  note();
  return sum;
}
// From now on nothing is noted: there is no room. This call's own scope still needs the
// interceptor.
std::vector<double> taken_notes() { return std::exchange(notes, {}); }
FARSPAN_REGISTER(begin_notes, noted_sum_of, taken_notes);

}  // namespace

std::vector<Stage> stages_of_calls(size_t calls, std::chrono::milliseconds pause) {
  const at::Tensor one = at::ones({1});
  farspan::rpc_sync("server", begin_notes, static_cast<int64_t>(calls));
  begin_notes(static_cast<int64_t>(calls));
  for (size_t i = 0; i < calls; ++i) {
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    note();
    farspan::rpc_sync("server", noted_sum_of, one, one);
    note();
  }
  const std::vector<double> here = taken_notes();
  const std::vector<double> there = farspan::rpc_sync("server", taken_notes);
  std::vector<std::vector<double>> times(7);
  for (size_t i = 0; i < calls; ++i) {
    const double* caller = &here[i * kNotesOfACaller];
    const double* callee = &there[i * kNotesOfACallee];
    const double places[] = {caller[0], caller[1], callee[0], callee[1],
                             callee[2], callee[3], caller[2], caller[3]};
    for (size_t stage = 0; stage < times.size(); ++stage) {
      times[stage].push_back(places[stage + 1] - places[stage]);
    }
  }
  const char* const names[] = {
      "the arguments become a message",  "it goes over, and is read; its tensors are made",
      "the function gets its arguments", "the function",
      "its result becomes a message",    "that goes back, and is read; its tensor is made",
      "the caller has its value"};
  std::vector<Stage> stages;
  for (size_t stage = 0; stage < times.size(); ++stage) {
    stages.push_back({names[stage], median(times[stage])});
  }
  return stages;
}

}  // namespace bench
