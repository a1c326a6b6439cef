// A call within this process, through everything but the wire.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <farspan/c10d/values/tensor_codec.h>
#include <farspan/rpc/call/register.h>

#include "c10d/values/message_fixture.h"

namespace farspan::testing {

// Runs `fn` on the arguments of a message.
template <class Fn>
auto with_arguments(const Message& message, Fn&& fn) {
  MetaReader meta(message.meta.span());
  const auto payload = meta.root<schema::Payload>();
  const TensorList tensors = read_tensors(payload, message.segments);
  Reader reader({tensors.data(), tensors.size()}, message.segments);
  Arguments arguments{payload.getValues(), reader};
  return fn(arguments);
}

template <class Write>
Message message_of(Write&& write) {
  std::vector<Buffer> segments;
  Writer writer(segments);
  MetaBuilder meta;
  auto payload = meta.init_root<schema::Payload>();
  write(payload, writer);
  write_tensors(payload, writer);
  Message message{aligned_copy(meta.finish()), {}};
  for (const Buffer& segment : segments) message.segments.push_back(aligned_copy(segment.span()));
  return message;
}

template <class Fn, class... Args>
Message arguments_for(const Function& function, Args&&... args) {
  return message_of([&](schema::Payload::Builder payload, Writer& writer) {
    write_arguments<Fn>(function, payload, writer, std::forward<Args>(args)...);
  });
}

template <class R>
R result_of(const Function& function, const Result& result) {
  const Message message = message_of([&](schema::Payload::Builder payload, Writer& writer) {
    write_result(function, payload, writer, result);
  });
  MetaReader meta(message.meta.span());
  const auto payload = meta.root<schema::Payload>();
  const TensorList tensors = read_tensors(payload, message.segments);
  Reader reader({tensors.data(), tensors.size()}, message.segments);
  return read_result<R>(function, payload, reader);
}

// The result as the callee holds it.
template <class Fn, class... Args>
requires CallableWith<Fn, Args...> std::shared_ptr<Result> invoke_here(Fn* fn, Args&&... args) {
  const Function& function = registered_function(fn);
  return with_arguments(arguments_for<Fn>(function, std::forward<Args>(args)...),
                        [&](Arguments& arguments) { return invoke(function, arguments); });
}

template <class C, class M, class... Args>
requires MethodCallableWith<C, M, Args...> std::shared_ptr<Result> invoke_on(
    const std::shared_ptr<Result>& self, M method, Args&&... args) {
  const Function& function = registered_method<C>(method);
  return with_arguments(arguments_for<M>(function, std::forward<Args>(args)...),
                        [&](Arguments& arguments) { return invoke(function, arguments, self); });
}

// The result as the caller gets it.
template <class Fn, class... Args>
result_of_t<Fn> call(Fn* fn, Args&&... args) {
  const auto result = invoke_here(fn, std::forward<Args>(args)...);
  return result_of<result_of_t<Fn>>(registered_function(fn), *result);
}

}  // namespace farspan::testing
