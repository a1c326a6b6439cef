#include <farspan/c10d/backends/nccl/agreements.h>

#include <utility>

#include <farspan/c10d/backends/absence.h>

namespace farspan::dist::nccl {

Call beside(const Call& call, DType type) {
  Call other = call;
  other.type = type;
  other.on_device = nullptr;
  return other;
}

class Agreements::Task final : public Lane::Task {
 public:
  Task(std::shared_ptr<Lane> lane, std::shared_ptr<Backend> control, const Call& call)
      : Lane::Task(std::move(lane), call.deadline),
        control_(std::move(control)),
        call_(beside(call, DType::UINT64)) {}
  Task(std::shared_ptr<Lane> lane, std::shared_ptr<Backend> control, const Call& call, int rank,
       std::span<const Block> in, std::span<const Block> out)
      : Task(std::move(lane), std::move(control), call) {
    rank_ = rank;
    for (const Block& block : in) sent_.push_back(block.count);
    for (const Block& block : out) expected_.push_back(block.count);
  }

  void run(uint64_t) noexcept override {
    try {
      if (sent_.empty()) {
        control_->barrier(call_);
      } else {
        compare_counts();
      }
    } catch (...) {
      failure_ = to_error(std::current_exception());
    }
  }
  void complete() noexcept override {
    if (failure_) {
      set_error(*failure_);
    } else {
      set_value(-1);
    }
  }
  void reject() noexcept override { set_error(left_error()); }
  void expire(uint64_t) noexcept override {
    set_error(Error(Code::kTimeout, "the ranks have not agreed on the calls before")
                  .advice("give it more time, or wait for what is before it in the group"));
  }

 private:
  // Each rank knows how much it expects of whom, and tells the others, who meet, what is wrong.
  void compare_counts() {
    const size_t ranks = sent_.size();
    const auto place = [](uint64_t& count) {
      return Block{reinterpret_cast<std::byte*>(&count), 1};
    };
    std::vector<uint64_t> told(ranks);
    std::vector<Block> in, out;
    for (size_t rank = 0; rank < ranks; ++rank) {
      in.push_back(place(sent_[rank]));
      out.push_back(place(told[rank]));
    }
    control_->all_to_all(call_, in, out);
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (told[rank] == expected_[rank]) continue;
      const std::string from = control_->name_of(static_cast<int>(rank));
      Error error(Code::kShapeMismatch,
                  describe_parts(from, told[rank], control_->name_of(rank_), expected_[rank]));
      error.worker(from);
      control_->abort(error, call_.signature.sequence);
      throw error;
    }
    control_->barrier(call_);
  }

  const std::shared_ptr<Backend> control_;
  const Call call_;
  int rank_ = 0;
  std::vector<uint64_t> sent_, expected_;  // by rank; empty: no all_to_all
  std::optional<Error> failure_;
};

Future<int> Agreements::post(std::shared_ptr<Task> task) {
  last_ = Future<int>(task);
  lane_->post(std::move(task));
  return last_;
}

Future<int> Agreements::ask(const Call& call) {
  return post(std::make_shared<Task>(lane_, control_, call));
}

Future<int> Agreements::ask(const Call& call, std::span<const Block> in,
                            std::span<const Block> out) {
  return post(std::make_shared<Task>(lane_, control_, call, rank_, in, out));
}

void Agreements::settle(Deadline deadline) {
  if (!last_.valid()) return;
  if (!last_.wait_until(deadline)) {
    throw Error(Code::kTimeout, "the ranks have not agreed on the calls before");
  }
  last_.value();
}

}  // namespace farspan::dist::nccl
