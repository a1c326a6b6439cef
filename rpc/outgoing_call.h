// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// OutgoingCall: builds and sends one request. PendingResult: waits for its answer. CallState<T>:
// the same, as the state of a Future<T>.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/values/borrowed_tensors.h>
#include <farspan/c10d/values/codec.h>
#include <farspan/c10d/values/message.h>
#include <farspan/rpc/call.capnp.h>
#include <farspan/rpc/call/interceptor.h>
#include <farspan/rpc/call_scope.h>
#include <farspan/rpc/worker.h>

namespace farspan {

// What a call is called in messages: "rpc_sync square".
struct CallName {
  const char* verb;
  std::string function;
  std::string text() const { return verb + (" " + function); }
};

// Whom a call goes to.
//   throws  Error kInvalidArgument: there is no such worker
int rank_of(const Worker& worker, const WorkerTarget& to, const char* verb,
            const std::string& function);
// Throws it again, with what is known here of the call that it has kept from being made.
[[noreturn]] void throw_of_call(const Error& why, const Worker& worker, int to,
                                const CallName& name);

// Gets the answer to one call and makes a value, or an Error that says which call failed, of it.
class PendingResult : public agent::ReplyHandler,
                      public std::enable_shared_from_this<PendingResult> {
 public:
  PendingResult(std::shared_ptr<Worker> worker, int peer, CallName name);

  void on_reply(wire::InFrame&& reply) noexcept final;
  void on_error(const Error& why) noexcept final;

  int peer() const noexcept { return peer_; }
  // Keeps something alive until the call has ended: the reference that it was made through.
  void keep(std::shared_ptr<void> what) noexcept { kept_ = std::move(what); }

 protected:
  // Exactly one of them is called, once.
  //   throws  BadValue, Error: the answer is not what was expected
  virtual void accept(schema::Value::Reader value, Reader& reader) = 0;
  virtual void fail(Error error) noexcept = 0;
  // After fail(), for an answer that came but does not count: reads and drops what must not be
  // lost.
  virtual void drop(schema::Value::Reader, Reader&) {}

  // The calling thread's current streams wait for what writes the answer's tensors.
  void wait_for_devices() {
    if (device_work_) device_work_->wait_on_current_streams();
  }
  // Its operation and worker.
  void add_call_to(Error& error) const;
  // False: there is no call to be given up any more.
  bool give_up();
  // Waits as a thread of the call's own chain.
  bool wait_for_answer(FutureCore& future, Deadline deadline);

 private:
  friend class OutgoingCall;
  // An answer that has come and cannot be read yet. Meanwhile the call's deadline passes, and it
  // may be given up; what comes of the answer then is dropped.
  struct Late {
    wire::InFrame reply;
    agent::TimerId timer = 0;
    std::shared_ptr<const void> watch = nullptr;
    const Promise<void> given_up{};
  };
  enum class MayBlock { kNo, kYes };
  struct Reading {
    bool is_mine = false;     // it has ended the call
    bool has_values = false;  // nothing of the answer is lost any more
  };
  void keep_for_later(wire::InFrame&& reply);
  bool end_late(const Error& why) noexcept;
  void read_when_given_back();
  void read_as_task();
  void read(wire::InFrame& reply, MayBlock may_block) noexcept;
  void read_return(wire::InFrame& reply, MayBlock may_block, Reading& reading);
  void drop_return(wire::InFrame& reply) noexcept;
  bool claim() noexcept;
  void end_with(const Error& why) noexcept;
  void note_time(bool has_answer) noexcept;
  void settle(bool arrived) noexcept;
  Clock::duration elapsed() const noexcept { return worker_->messenger().now() - begun_; }
  Error named(const Error& why) const;

  const std::shared_ptr<Worker> worker_;
  const int peer_;
  const CallName name_;
  const TimePoint begun_;
  net::Forecast* forecast_ = nullptr;  // of the worker's, for its peer and function
  Deadline deadline_;
  uint64_t chain_ = 0;
  std::shared_ptr<Interceptor::Scope> scope_;
  std::vector<CallScope::OnOutcome> outcomes_;
  BorrowedTensors borrowed_;
  std::shared_ptr<DeviceWork> device_work_;  // that the answer's tensors are written by
  std::shared_ptr<void> kept_;
  // When memory of devices that the call lends is the caller's again: it is not over before.
  std::optional<Future<void>> given_back_;
  std::atomic<bool> is_late_{false};  // its answer is: whoever ends the call has to claim() it
  std::atomic<bool> is_over_{false};  // somebody has
  std::atomic<bool> is_unwanted_{false};
  std::unique_ptr<Late> late_;  // before is_late_
  bool is_timed_ = false;
};

template <class T>
class CallState final : public detail::FutureState<T>, public PendingResult {
 public:
  using PendingResult::PendingResult;

 private:
  void accept(schema::Value::Reader value, Reader& reader) override {
    if constexpr (std::is_void_v<T>) {
      this->set_value();
    } else {
      this->set_value(Codec<T>::read(value, reader));
    }
  }
  void fail(Error error) noexcept override { this->set_error(std::move(error)); }
  void drop(schema::Value::Reader value, Reader& reader) override {
    if constexpr (!std::is_void_v<T>) Codec<T>::read(value, reader);
  }
  bool block(Deadline deadline) override { return wait_for_answer(*this, deadline); }
  bool cancel() override { return !this->ready() && give_up(); }
  void name_in(Error& error) const override { add_call_to(error); }
  void take_over() override {
    wait_for_devices();
    observe_device_work();  // of what was called back meanwhile
  }
};

// Threading: used by one thread, and short-lived: it holds the thread's scratch memory.
class OutgoingCall {
 public:
  //   function  the id that the registry gave; 0 where the kind needs none
  OutgoingCall(Worker& worker, int to, wire::Kind kind, CallName name, uint64_t function);

  // Where the arguments go.
  schema::Payload::Builder payload() noexcept { return payload_; }
  Writer& writer() noexcept { return writer_; }
  // What the kind's room needs to know besides: which reference the call is about.
  void subject(std::span<const std::byte> bytes);
  CallScope& scope() noexcept { return scope_; }

  // Sends it; `result` hears of the answer.
  // Large tensors are borrowed until then: one that is changed in place meanwhile fails the call.
  //   throws  Error kInvalidArgument: a tensor that does not travel
  void send(std::shared_ptr<PendingResult> result, const CallOptions& options, bool will_wait);

  const CallName& name() const noexcept { return name_; }

 private:
  Worker& worker_;
  const int to_;
  const wire::Kind kind_;
  const uint64_t function_;
  const CallName name_;
  CallScope scope_;
  std::vector<Buffer> segments_;
  Writer writer_;
  MetaBuilder builder_;
  schema::Call::Builder call_;
  schema::Payload::Builder payload_;
};

// For a message that is read, or a call that is served, in the calling thread; null: this worker's
// tensors are the CPU's.
std::unique_ptr<DeviceStreams> own_streams(Worker& worker);

// Reads and writes what interceptors add.
void write_extensions(schema::Call::Builder call, const Extensions& extensions);
void write_extensions(schema::Return::Builder answer, const Extensions& extensions);
Extensions read_extensions(capnp::List<schema::Extension>::Reader list);

}  // namespace farspan
