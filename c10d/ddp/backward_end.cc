#include <farspan/c10d/ddp/backward_end.h>

#include <memory>
#include <utility>

#include <torch/csrc/autograd/engine.h>

namespace farspan::dist {
namespace {

// The engine lets go of the callbacks of a pass that throws: that is how we hear of it.
class Ending {
 public:
  Ending(std::function<void()> ended, std::function<void()> failed)
      : ended_(std::move(ended)), failed_(std::move(failed)) {}
  ~Ending() {
    if (failed_) failed_();
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  void run() {
    failed_ = nullptr;
    ended_();
  }

 private:
  const std::function<void()> ended_;
  std::function<void()> failed_;
};

}  // namespace

void at_end_of_backward(std::function<void()> ended, std::function<void()> failed) {
  auto ending = std::make_shared<Ending>(std::move(ended), std::move(failed));
  torch::autograd::Engine::get_default_engine().queue_callback(
      [ending = std::move(ending)] { ending->run(); });
}

}  // namespace farspan::dist
