#include <farspan/c10d/group/point_to_point.h>

#include <utility>

#include <farspan/c10d/group/start.h>
#include <farspan/c10d/group/transfer.h>

namespace farspan::dist {
namespace {

using Kind = P2POp::Kind;

Transfer transfer(const P2POp& one) {
  if (one.options.tag < 0) {
    throw Error(Code::kInvalidArgument, "tag " + std::to_string(one.options.tag))
        .operation(one.kind == Kind::kSend ? "send" : "recv")
        .advice("tags begin at 0");
  }
  return Transfer(one.kind, one.tensor, one.peer, one.options);
}

}  // namespace

Transfer::Transfer(Kind kind, const at::Tensor& tensor, int peer, const MessageOptions& options)
    : kind_(kind) {
  const bool sends = kind == Kind::kSend;
  Start start(sends ? Op::kSend : Op::kRecv, options.group);
  start.tensor(tensor, "the tensor");
  group_ = start.group();
  signature_ = start.signature();
  message_.tag = options.tag;
  message_.type = static_cast<DType>(signature_.type);
  message_.deadline = group_->deadline(options.timeout, called_);
  try {
    if (sends || peer != kAnySource) message_.peer = group_->group_rank(peer);
    data_ = TensorBlock(tensor, sends ? TensorBlock::Use::kRead : TensorBlock::Use::kWrite);
  } catch (Error& error) {
    throw error.operation(sends ? "send" : "recv");
  }
}

Future<int> Transfer::call_backend() {
  group_->check_usable(signature_);
  signature_.sequence = group_->count_message();
  OperationRecord record;
  record.signature = signature_;
  record.peer = message_.peer;
  record.tag = message_.tag;
  record.state = OperationRecord::State::kRunning;
  record.called = record.begun = called_;
  record_ = group_->records().add(record);
  Backend& backend = group_->backend();
  return kind_ == Kind::kSend ? backend.send(message_, data_.block())
                              : backend.recv(message_, data_.block());
}

// Of one that has ended: what it came to.
int Transfer::end(const Future<int>& done) {
  group_->records().end(record_, done.has_error(), Clock::now());
  if (!done.has_error()) {
    if (kind_ == Kind::kRecv) data_.finish();
    return group_->global_rank(done.value());
  }
  Error error = done.error();
  const std::string peer =
      message_.peer < 0 ? "any rank" : "rank " + std::to_string(group_->global_rank(message_.peer));
  std::string what = describe(signature_) + (kind_ == Kind::kSend ? " to " : " from ") + peer +
                     ", tag " + std::to_string(message_.tag) + ", message " +
                     std::to_string(signature_.sequence) + " of this rank in " + group_->label();
  throw error.operation(std::move(what)).elapsed(Clock::now() - called_);
}

int Transfer::finish() {
  const Future<int> done = call_backend();
  done.wait_until(Deadline::never());  // its own deadline ends it
  return end(done);
}

// A message under way: holds on to the tensor, and waits as its backend does.
class Transfer::State final : public farspan::detail::FutureState<int> {
 public:
  State(Transfer transfer, Future<int> done)
      : transfer_(std::move(transfer)), done_(std::move(done)) {}

  void settle() noexcept {
    try {
      const int rank = transfer_->end(done_);
      transfer_.reset();  // of the tensor, and of the group
      set_value(rank);
    } catch (...) {
      transfer_.reset();
      set_error(to_error(std::current_exception()));
    }
  }

 protected:
  bool block(Deadline deadline) override {
    return done_.wait_until(deadline) && sleep(deadline);  // settle() may run elsewhere
  }

 private:
  std::optional<Transfer> transfer_;
  const Future<int> done_;
};

Work Transfer::begin() {
  Future<int> done = call_backend();
  const auto state = std::make_shared<State>(std::move(*this), done);
  if (done.ready()) {
    state->settle();
  } else {
    done.on_ready([state] { state->settle(); });
  }
  return Work(Future<int>(state));
}

void send(const at::Tensor& tensor, int dst, const MessageOptions& options) {
  transfer({Kind::kSend, tensor, dst, options}).finish();
}
Work isend(const at::Tensor& tensor, int dst, const MessageOptions& options) {
  return transfer({Kind::kSend, tensor, dst, options}).begin();
}

int recv(const at::Tensor& tensor, int src, const MessageOptions& options) {
  return transfer({Kind::kRecv, tensor, src, options}).finish();
}
Work irecv(const at::Tensor& tensor, int src, const MessageOptions& options) {
  return transfer({Kind::kRecv, tensor, src, options}).begin();
}

// Receives first: then nothing that is sent needs to be kept.
std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& operations) {
  if (operations.empty()) {
    throw Error(Code::kInvalidArgument, "the list of operations is empty")
        .operation("batch_isend_irecv");
  }
  std::vector<Transfer> transfers;
  for (const P2POp& one : operations) transfers.push_back(transfer(one));
  std::vector<Work> works(operations.size());
  for (const Kind kind : {Kind::kRecv, Kind::kSend}) {
    for (size_t i = 0; i < operations.size(); ++i) {
      if (operations[i].kind == kind) works[i] = transfers[i].begin();
    }
  }
  return works;
}

}  // namespace farspan::dist
