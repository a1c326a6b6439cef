#include <farspan/c10d/backends/nccl/cuda/library.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <farspan/c10d/backends/nccl/apart.h>
#include <farspan/c10d/backends/nccl/elements.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/cuda/driver.h>

namespace farspan::dist::nccl {
namespace {

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));

constexpr Micros kFirstPause{10};  // between looks at what is in progress; then longer ones
constexpr Micros kLongestPause{500};
// How long abort() waits for calls of other threads to see it. They do in a moment, unless NCCL or
// the driver does not return.
constexpr Millis kToLeave{1000};
constexpr Millis kToFinalize{5000};

//   comm  null: of none
Error error_of(ncclResult_t result, const char* function, ncclComm_t comm) {
  cudaGetLastError();  // what NCCL has not cleared
  const bool is_argument = result == ncclInvalidArgument || result == ncclInvalidUsage;
  std::string message = ncclGetErrorString(result);
  const char* const details = ncclGetLastError(comm);
  if (details && *details) message += std::string(": ") + details;
  return Error(is_argument ? Code::kInvalidArgument : Code::kUnavailable, std::move(message))
      .operation(function)
      .advice("NCCL says more when the environment has NCCL_DEBUG=INFO");
}

bool is_error(ncclResult_t result) noexcept {
  return result != ncclSuccess && result != ncclInProgress;
}

void check(ncclResult_t result, const char* function, ncclComm_t comm = nullptr) {
  if (is_error(result)) throw error_of(result, function, comm);
}

cudaStream_t raw(device::Stream stream) noexcept {
  return static_cast<cudaStream_t>(stream.handle);
}

// Of what as_nccl() gives.
ncclDataType_t type_of(const AsNccl& as) {
  switch (as.type) {
    case DType::INT8:
      return ncclInt8;
    case DType::UINT8:
      return ncclUint8;
    case DType::INT32:
      return ncclInt32;
    case DType::UINT32:
      return ncclUint32;
    case DType::INT64:
      return ncclInt64;
    case DType::UINT64:
      return ncclUint64;
    case DType::FLOAT16:
      return ncclFloat16;
    case DType::BFLOAT16:
      return ncclBfloat16;
    case DType::FLOAT32:
      return ncclFloat32;
    case DType::FLOAT64:
      return ncclFloat64;
    default:
      throw Error(Code::kInternal, "a type that NCCL does not have");
  }
}

ncclRedOp_t op_of(const AsNccl& as) {
  switch (as.op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kAvg:
      return ncclAvg;
    case ReduceOp::kProduct:
      return ncclProd;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    default:
      throw Error(Code::kInternal, "an operation that NCCL does not have");
  }
}

struct Reduction {
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
};

Reduction reduction(size_t count, DType type, ReduceOp::Kind op) {
  const auto as = as_nccl(op, type);
  if (as) return {count * as->factor, type_of(*as), op_of(*as)};
  throw Error(Code::kInvalidArgument,
              "NCCL has no " + std::string(name_of(op)) + " of " + std::string(name_of(type)));
}

Error aborted(const char* function) {
  return Error(Code::kUnavailable, "the communicator has ended, or is being aborted")
      .operation(function);
}

// A communicator, and who is calling it: NCCL frees it when it is aborted, which must not be while
// another thread looks at it.
//
// Threading: every method from any thread.
class Member {
 public:
  Member(ncclComm_t comm, int device) : comm_(comm), device_(device) {}

  ncclComm_t comm() const noexcept { return comm_; }
  int device() const noexcept { return device_; }

  // False: it is being aborted, or has ended.
  bool enter() {
    MutexLock lock(mutex_);
    if (is_closed_) return false;
    ++inside_;
    return true;
  }
  void leave() noexcept {
    MutexLock lock(mutex_);
    if (--inside_ == 0) left_.notify_all();
  }
  // NCCL may be asked by one thread at a time, also for its state, which ends what is in progress.
  std::mutex& calls() noexcept { return calls_; }
  bool is_closed() const {
    MutexLock lock(mutex_);
    return is_closed_;
  }
  // Whoever is inside is to leave. False: it was closed before.
  bool close() {
    MutexLock lock(mutex_);
    return !std::exchange(is_closed_, true);
  }
  // False: not all have left in time.
  bool wait_until_left(Deadline deadline) {
    MutexLock lock(mutex_);
    while (inside_ > 0) {
      if (!left_.wait_until(mutex_, deadline)) return inside_ == 0;
    }
    return true;
  }

 private:
  const ncclComm_t comm_;
  const int device_;
  mutable Mutex mutex_;
  std::mutex calls_;
  CondVar left_;
  int inside_ FARSPAN_GUARDED_BY(mutex_) = 0;
  bool is_closed_ FARSPAN_GUARDED_BY(mutex_) = false;
};

// While it lives, the communicator is there, and no other thread calls NCCL for it.
class Inside {
 public:
  enum class If { kNeeded, kFree };  // is_in(): at once, or not at all
  Inside(std::shared_ptr<Member> member, const char* function, If when = If::kNeeded) {
    if (!member || !member->enter()) throw aborted(function);
    calls_ = std::unique_lock(member->calls(), std::defer_lock);
    member_ = std::move(member);
    if (when == If::kFree) {
      static_cast<void>(calls_.try_lock());
    } else {
      calls_.lock();
    }
  }
  ~Inside() {
    if (calls_) calls_.unlock();
    if (member_) member_->leave();
  }
  bool is_in() const noexcept { return calls_.owns_lock(); }
  Inside(Inside&&) = default;
  Inside& operator=(Inside&&) = delete;

  Member* operator->() const noexcept { return member_.get(); }
  const std::shared_ptr<Member>& member() const noexcept { return member_; }

 private:
  std::shared_ptr<Member> member_;  // null: moved from
  std::unique_lock<std::mutex> calls_;
};

// What the calling thread has called since group_begin().
struct Group {
  int depth = 0;
  std::vector<Inside> used;  // each once
};
Group& group_of_thread() {
  thread_local Group group;
  return group;
}

// Nothing: it has been closed meanwhile.
std::optional<ncclResult_t> state_of(Member& member, const char* function) {
  if (member.is_closed()) return std::nullopt;
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(member.comm(), &state), function, member.comm());
  return state;
}

// Waits until what has been called is not in progress any more.
void settle(Member& member, const char* function) {
  for (Micros pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    const auto state = state_of(member, function);
    if (!state) throw aborted(function);
    if (*state != ncclInProgress) return check(*state, function, member.comm());
    std::this_thread::sleep_for(pause);
  }
}

class NcclLibrary final : public Library {
 public:
  explicit NcclLibrary(std::shared_ptr<device::Devices> devices) : devices_(std::move(devices)) {}

  const std::shared_ptr<device::Devices>& devices() const noexcept override { return devices_; }

  UniqueId make_unique_id() override {
    ncclUniqueId made;
    check(ncclGetUniqueId(&made), "ncclGetUniqueId");
    UniqueId id;
    std::memcpy(id.data(), &made, sizeof made);
    return id;
  }
  Comm begin(const UniqueId& id, int device, int rank, int ranks) override;
  State state(Comm comm) override;
  void abort(Comm comm) noexcept override;
  bool end(Comm comm) noexcept override;

  bool reduces(ReduceOp::Kind op, DType type) const noexcept override {
    return as_nccl(op, type).has_value();
  }

  void group_begin() override;
  void group_end() override;

  void all_reduce(Comm comm, const void* in, void* out, size_t count, DType type, ReduceOp::Kind op,
                  device::Stream stream) override {
    const Reduction as = reduction(count, type, op);
    call(comm, "ncclAllReduce", [&](ncclComm_t raw_comm) {
      return ncclAllReduce(in, out, as.count, as.type, as.op, raw_comm, raw(stream));
    });
  }
  void reduce(Comm comm, const void* in, void* out, size_t count, DType type, ReduceOp::Kind op,
              int root, device::Stream stream) override {
    const Reduction as = reduction(count, type, op);
    call(comm, "ncclReduce", [&](ncclComm_t raw_comm) {
      return ncclReduce(in, out, as.count, as.type, as.op, root, raw_comm, raw(stream));
    });
  }
  void reduce_scatter(Comm comm, const void* in, void* out, size_t count, DType type,
                      ReduceOp::Kind op, device::Stream stream) override {
    const Reduction as = reduction(count, type, op);
    call(comm, "ncclReduceScatter", [&](ncclComm_t raw_comm) {
      return ncclReduceScatter(in, out, as.count, as.type, as.op, raw_comm, raw(stream));
    });
  }
  void broadcast(Comm comm, void* data, size_t bytes, int root, device::Stream stream) override {
    call(comm, "ncclBroadcast", [&](ncclComm_t raw_comm) {
      return ncclBroadcast(data, data, bytes, ncclUint8, root, raw_comm, raw(stream));
    });
  }
  void all_gather(Comm comm, const void* in, void* out, size_t bytes,
                  device::Stream stream) override {
    call(comm, "ncclAllGather", [&](ncclComm_t raw_comm) {
      return ncclAllGather(in, out, bytes, ncclUint8, raw_comm, raw(stream));
    });
  }
  void send(Comm comm, const void* data, size_t bytes, int peer, device::Stream stream) override {
    call(comm, "ncclSend", [&](ncclComm_t raw_comm) {
      return ncclSend(data, bytes, ncclUint8, peer, raw_comm, raw(stream));
    });
  }
  void recv(Comm comm, void* data, size_t bytes, int peer, device::Stream stream) override {
    call(comm, "ncclRecv", [&](ncclComm_t raw_comm) {
      return ncclRecv(data, bytes, ncclUint8, peer, raw_comm, raw(stream));
    });
  }

 private:
  // Null: there is none, or no more.
  std::shared_ptr<Member> find(Comm comm) const {
    MutexLock lock(mutex_);
    const auto found = members_.find(comm);
    return found == members_.end() ? nullptr : found->second;
  }
  // Null: somebody else has.
  std::shared_ptr<Member> remove(Comm comm) {
    MutexLock lock(mutex_);
    const auto found = members_.find(comm);
    if (found == members_.end()) return nullptr;
    auto member = std::move(found->second);
    members_.erase(found);
    return member;
  }
  template <class Call>
  void call(Comm comm, const char* function, const Call& call);

  const std::shared_ptr<device::Devices> devices_;
  mutable Mutex mutex_;
  std::unordered_map<Comm, std::shared_ptr<Member>> members_ FARSPAN_GUARDED_BY(mutex_);
  uintptr_t begun_ FARSPAN_GUARDED_BY(mutex_) = 0;
};

Comm NcclLibrary::begin(const UniqueId& id, int device, int rank, int ranks) {
  const device::OnDevice on(device);
  ncclUniqueId raw_id;
  std::memcpy(&raw_id, id.data(), sizeof raw_id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&comm, ranks, raw_id, rank, &config);
  if (is_error(result)) {
    Error error = error_of(result, "ncclCommInitRankConfig", comm);
    if (comm) {
      run_apart("farspan-abort", [comm, device] {
        cudaSetDevice(device);
        ncclCommAbort(comm);
      });
    }
    throw error;
  }
  MutexLock lock(mutex_);
  const auto member = std::make_shared<Member>(comm, device);
  // NCCL may give another one the address of one that has ended.
  const Comm handle = reinterpret_cast<Comm>(++begun_);
  members_[handle] = member;
  return handle;
}

Library::State NcclLibrary::state(Comm comm) {
  constexpr const char* kFunction = "ncclCommGetAsyncError";
  const Inside inside(find(comm), kFunction, Inside::If::kFree);
  if (!inside.is_in()) return State::kBusy;
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(inside->comm(), &state), kFunction, inside->comm());
  if (state == ncclInProgress) return State::kBusy;
  if (state == ncclSuccess) return State::kReady;
  throw Error(Code::kUnavailable, error_of(state, kFunction, inside->comm()).message())
      .operation("nccl")
      .advice("NCCL says more when the environment has NCCL_DEBUG=INFO");
}

template <class Call>
void NcclLibrary::call(Comm comm, const char* function, const Call& call) {
  Group& group = group_of_thread();
  std::shared_ptr<Member> member = find(comm);
  const bool is_known =
      std::ranges::any_of(group.used, [&](const Inside& one) { return one.member() == member; });
  std::optional<Inside> alone;
  if (group.depth == 0) {
    alone.emplace(member, function);
  } else if (!is_known) {
    group.used.emplace_back(member, function);  // until group_end(), whatever happens
  }
  const device::OnDevice on(member->device());
  check(call(member->comm()), function, member->comm());
  if (alone) settle(*member, function);
}

void NcclLibrary::group_begin() {
  check(ncclGroupStart(), "ncclGroupStart");
  ++group_of_thread().depth;
}

void NcclLibrary::group_end() {
  Group& group = group_of_thread();
  if (group.depth == 0) {
    throw Error(Code::kInvalidArgument, "no group has begun").operation("ncclGroupEnd");
  }
  std::vector<Inside> used;  // until all is in progress no more
  if (--group.depth == 0) used.swap(group.used);
  check(ncclGroupEnd(), "ncclGroupEnd");
  for (const Inside& one : used) settle(*one.member(), "ncclGroupEnd");
}

void NcclLibrary::abort(Comm comm) noexcept {
  const std::shared_ptr<Member> member = remove(comm);
  if (!member || !member->close()) return;
  // NCCL's own abort makes it return, if need be.
  if (!member->wait_until_left(Deadline::after(kToLeave))) {
    log(LogLevel::kWarning, "c10d/nccl", "a communicator is aborted while a call of it goes on");
  }
  ncclCommAbort(member->comm());
  cudaGetLastError();
}

bool NcclLibrary::end(Comm comm) noexcept {
  constexpr const char* kFunction = "ncclCommFinalize";
  const std::shared_ptr<Member> member = find(comm);
  if (!member) return true;
  try {
    const Inside inside(member, kFunction);
    check(ncclCommFinalize(member->comm()), kFunction, member->comm());
    const Deadline deadline = Deadline::after(kToFinalize);
    auto state = state_of(*member, kFunction);
    for (Micros pause = kFirstPause; state == ncclInProgress && !deadline.expired();
         pause = std::min(pause * 2, kLongestPause)) {
      std::this_thread::sleep_for(pause);
      state = state_of(*member, kFunction);
    }
    if (!state) return true;  // another thread aborts it
    if (*state == ncclInProgress) throw Error(Code::kTimeout, "it was not done in time");
    check(*state, kFunction, member->comm());
  } catch (const Error& error) {
    log(LogLevel::kDebug, "c10d/nccl", std::string("aborts what does not end: ") + error.what());
    return false;
  }
  if (!remove(comm) || !member->close()) return true;
  member->wait_until_left(Deadline::never());  // who looks at its state is out in a moment
  ncclCommDestroy(member->comm());
  cudaGetLastError();
  return true;
}

}  // namespace

std::shared_ptr<Library> make_nccl_library(std::shared_ptr<device::Devices> devices) {
  return std::make_shared<NcclLibrary>(std::move(devices));
}

}  // namespace farspan::dist::nccl
