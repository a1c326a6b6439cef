// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Interceptor: how a room above sees the tensors of calls, and adds a few words of its own to them.
// Distributed autograd is one; rpc knows no more of it than this.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <span>

#include <farspan/c10d/values/value_io.h>

namespace farspan {

// What a room adds to a call or an answer.
struct Extension {
  uint16_t room = 0;  // 1: distributed autograd
  uint64_t first = 0, second = 0;
};
using Extensions = c10::SmallVector<Extension, 1>;

// Threading: every method from any thread, several at once for different calls. All may throw
//            Error, which fails the call.
class Interceptor {
 public:
  // What one call is in, at one of its ends, until it is answered.
  class Scope {
   public:
    virtual ~Scope() = default;
    // Around the function, and around everything that continues it, in the thread that runs it.
    virtual void enter() = 0;
    virtual void leave() noexcept = 0;
  };

  virtual ~Interceptor() = default;

  // At the caller. Tensors may be replaced, one by one, before they are sent.
  //   returns  what the call is in; null: nothing, and after_reply() is not called for it
  virtual std::shared_ptr<Scope> before_request(int to, TensorList& tensors,
                                                Extensions& extensions) = 0;
  virtual void after_reply(Scope& scope, int from, std::span<const Extension> extensions,
                           TensorList& tensors) = 0;

  // At the callee; likewise.
  virtual std::shared_ptr<Scope> after_request(int from, std::span<const Extension> extensions,
                                               TensorList& tensors) = 0;
  virtual void before_reply(Scope& scope, int to, TensorList& tensors, Extensions& extensions) = 0;
};

// Runs the rest of a block inside a scope; nothing for null.
class InScope {
 public:
  explicit InScope(Interceptor::Scope* scope) : scope_(scope) {
    if (scope_) scope_->enter();
  }
  ~InScope() {
    if (scope_) scope_->leave();
  }
  InScope(const InScope&) = delete;
  InScope& operator=(const InScope&) = delete;

 private:
  Interceptor::Scope* scope_;
};

}  // namespace farspan
