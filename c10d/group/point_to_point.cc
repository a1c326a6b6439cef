#include <farspan/c10d/group/point_to_point.h>

#include <utility>

#include <farspan/c10d/group/start.h>
#include <farspan/c10d/group/transfer.h>

namespace farspan::dist {
namespace {

using Kind = P2POp::Kind;

// Of a device: up to this size a send to itself ends before its receive, as of the processor.
constexpr size_t kKeptBytes = 32 << 10;

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
    place_ = start.place();
    signature_.on_device = false;  // its own affair, and the backend's errors say so
    data_ = TensorBlock(tensor, sends ? TensorBlock::Use::kRead : TensorBlock::Use::kWrite,
                        start.where());
    const size_t bytes = data_.block().count * data_.element_size();
    is_own_ = place_ && sends && message_.peer == group_->rank() && bytes <= kKeptBytes;
    if (is_own_) data_ = data_.moved();
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
  try {
    if (place_) {
      begin_on_device();
    } else {
      data_.begin(message_.deadline);
    }
  } catch (Error& error) {
    return make_error_future<int>(error);
  }
  return kind_ == Kind::kSend ? backend.send(message_, data_.block())
                              : backend.recv(message_, data_.block());
}

void Transfer::begin_on_device() {
  message_.on_device = std::make_shared<DeviceMessage>();
  message_.on_device->stream = place_->current_stream();
  message_.on_device->memory = std::make_shared<const TensorBlock>(data_);
  message_.on_device->is_own = is_own_;
}

// The group may be gone when a device has done it.
void Transfer::note_end(const Future<int>& ended) {
  ended.on_ready([ended, weak = std::weak_ptr<ProcessGroup>(group_), record = record_] {
    if (const Group alive = weak.lock()) {
      alive->records().end(record, ended.has_error(), Clock::now());
    }
  });
}

// What has come is brought to where it is wanted.
std::shared_ptr<DeviceWork> Transfer::land() {
  std::shared_ptr<DeviceWork> come;
  if (place_) come = place_->work_of(message_.on_device->hold_up);
  if (kind_ == Kind::kSend) return come;
  if (!place_ || data_.is_in_place()) {
    data_.finish();
    return come;
  }
  const auto turn = place_->turn_beside(*come);
  data_.begin(message_.deadline);
  data_.finish();
  return place_->work_so_far();
}

// Of one that has ended, or that a device has been given: what it came to.
Transfer::Ended Transfer::end(const Future<int>& done) {
  if (place_ && !done.has_error()) {
    note_end(message_.on_device->ended);
  } else {
    group_->records().end(record_, done.has_error(), Clock::now());
  }
  if (!done.has_error()) {
    auto work = land();
    return {group_->global_rank(done.value()), std::move(work)};
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
  const Ended ended = end(done);
  if (ended.work) ended.work->wait_on_current_streams();
  return ended.rank;
}

// A message under way: holds on to the tensor, and waits as its backend does.
class Transfer::State final : public farspan::detail::FutureState<int> {
 public:
  State(Transfer transfer, Future<int> done)
      : transfer_(std::move(transfer)), done_(std::move(done)) {}

  void settle() noexcept {
    try {
      Ended ended = transfer_->end(done_);
      transfer_.reset();  // of the tensor, and of the group
      work_ = std::move(ended.work);
      set_value(ended.rank);
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
  // Who waits for it uses the tensor on his current stream.
  void take_over() override {
    if (work_) return work_->wait_on_current_streams();
    observe_device_work();
  }

  std::optional<Transfer> transfer_;
  const Future<int> done_;
  std::shared_ptr<DeviceWork> work_;  // of a device
};

Work Transfer::begin() {
  Future<int> done = call_backend();
  const auto on_device = message_.on_device;
  const auto ended =
      on_device ? std::shared_ptr<const Future<int>>(on_device, &on_device->ended) : nullptr;
  const auto state = std::make_shared<State>(std::move(*this), done);
  if (done.ready()) {
    state->settle();
  } else {
    done.on_ready([state] { state->settle(); });
  }
  return Work(Future<int>(state), ended);
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
