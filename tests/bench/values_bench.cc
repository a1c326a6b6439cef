// What the values of one call cost: encoding, decoding, running. Prints one JSON object per figure.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <farspan/c10d/values/tensor_codec.h>
#include <farspan/rpc/call/register.h>

namespace farspan {
namespace {

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
at::Tensor first(const at::Tensor& a, const at::Tensor&) { return a; }
int64_t sum(int64_t a, const std::string& b) { return a + static_cast<int64_t>(b.size()); }
FARSPAN_REGISTER(add, first, sum);

// The best of several rounds, in microseconds a time: what it costs undisturbed.
template <class Fn>
void measure(const std::string& name, Fn&& fn, int times = 100'000) {
  double best = 1e9;
  for (int round = 0; round < 9; ++round) {
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) fn();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begun;
    best = std::min(best, took.count() / times);
  }
  std::printf("{\"case\": \"%s\", \"value\": %.3f, \"unit\": \"us\"}\n", name.c_str(), best);
}

struct Received {
  Buffer meta;
  std::vector<Buffer> segments;
};

template <class Fn, class... Args>
void encode(std::vector<Buffer>& segments, const Function& function, Received* into,
            const Args&... args) {
  segments.clear();
  Writer writer(segments);
  MetaBuilder meta;
  auto payload = meta.init_root<schema::Payload>();
  write_arguments<Fn>(function, payload, writer, args...);
  write_tensors(payload, writer);
  const auto bytes = meta.finish();
  if (!into) return;
  into->meta = Buffer::copy_of(bytes);
  into->segments.clear();
  for (const Buffer& segment : segments) into->segments.push_back(Buffer::copy_of(segment.span()));
}

template <class Use>
void decode(const Received& received, Use&& use) {
  MetaReader meta(received.meta.span());
  const auto payload = meta.root<schema::Payload>();
  const TensorList tensors = read_tensors(payload, received.segments);
  Reader reader({tensors.data(), tensors.size()}, received.segments);
  Arguments arguments{payload.getValues(), reader};
  use(arguments);
}

int run() {
  at::globalContext();
  const at::Tensor a = at::ones({1}), b = at::ones({1});
  std::vector<Buffer> segments;
  Received two_tensors, plain;
  const Function& adding = registered_function(add);
  const Function& passing = registered_function(first);
  const Function& summing = registered_function(sum);

  measure("find function", [&] { registered_function(add); });
  measure("encode two tensors", [&] { encode<decltype(add)>(segments, adding, nullptr, a, b); });
  encode<decltype(add)>(segments, adding, &two_tensors, a, b);
  measure("decode two tensors", [&] { decode(two_tensors, [](Arguments&) {}); });
  measure("decode and run, empty function",
          [&] { decode(two_tensors, [&](Arguments& args) { invoke(passing, args); }); });
  measure("decode and run, add",
          [&] { decode(two_tensors, [&](Arguments& args) { invoke(adding, args); }); });
  measure("two at::empty", [] {
    at::empty({1});
    at::empty({1});
  });
  measure("at::add", [&] { a.add(b); });
  const std::string text = "sixteen letters.";
  measure("encode int and string",
          [&] { encode<decltype(sum)>(segments, summing, nullptr, 1, text); });
  encode<decltype(sum)>(segments, summing, &plain, 1, text);
  measure("decode and run, int and string",
          [&] { decode(plain, [&](Arguments& args) { invoke(summing, args); }); });
  std::printf("{\"case\": \"message with two tensors\", \"value\": %zu, \"unit\": \"bytes\"}\n",
              two_tensors.meta.size());
  return 0;
}

}  // namespace
}  // namespace farspan

int main() { return farspan::run(); }
