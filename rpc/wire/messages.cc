#include <farspan/rpc/wire/messages.h>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <algorithm>
#include <random>

#include <farspan/rpc/wire/message.capnp.h>

namespace farspan::wire {
namespace {

// What an error says is cut here, so that it always fits into a frame.
constexpr size_t kMaxText = 64 << 10;
// A function's record takes at least this many words; a list that claims more has made them up.
constexpr size_t kFunctionWords = 3;

// One segment, so that no segment table is needed.
Buffer to_meta(capnp::MallocMessageBuilder& message) {
  const auto segments = message.getSegmentsForOutput();
  size_t bytes = 0;
  for (const auto& segment : segments) bytes += segment.asBytes().size();
  FARSPAN_ASSERT(segments.size() == 1, "the first segment was too small");
  return Buffer::copy_of({reinterpret_cast<const std::byte*>(segments[0].begin()), bytes});
}

// The size of the first segment, in words, that holds `text_bytes` of text and the fixed parts.
unsigned words_for(size_t text_bytes, size_t items) {
  return static_cast<unsigned>(128 + text_bytes / 8 + 8 * items);
}

template <class Schema, class Fn>
auto read_meta(std::span<const std::byte> meta, Fn&& fn) {
  try {
    const kj::ArrayPtr<const capnp::word> words(reinterpret_cast<const capnp::word*>(meta.data()),
                                                meta.size() / sizeof(capnp::word));
    capnp::ReaderOptions options;
    options.traversalLimitInWords = 2 * words.size() + 64;
    options.nestingLimit = 16;
    capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&words, 1), options);
    return fn(reader.getRoot<Schema>());
  } catch (const kj::Exception& e) {
    throw Error(Code::kCorrupt, e.getDescription().cStr()).operation("read a message");
  }
}

std::string to_string(capnp::Text::Reader text) { return {text.cStr(), text.size()}; }

// All of it: a plain conversion ends at the first NUL.
capnp::Text::Reader whole(const std::string& text) { return {text.c_str(), text.size()}; }

std::string cut(const std::string& text) {
  if (text.size() <= kMaxText) return text;
  return text.substr(0, kMaxText) + "... (" + std::to_string(text.size()) + " bytes in all)";
}

}  // namespace

InstanceId InstanceId::random() {
  std::random_device entropy;
  const auto draw = [&] { return (uint64_t{entropy()} << 32) | entropy(); };
  return {draw(), draw()};
}

Buffer encode(const Hello& hello) {
  size_t text =
      hello.name.size() + hello.generation.size() + hello.host.size() + hello.authentication.size();
  for (const auto& function : hello.functions) {
    text += function.name.size() + function.signature.size();
  }
  capnp::MallocMessageBuilder message(words_for(text, hello.functions.size()));
  auto out = message.initRoot<schema::Hello>();
  out.setMinVersion(hello.min_version);
  out.setMaxVersion(hello.max_version);
  out.setFeatures(hello.features);
  out.setName(whole(hello.name));
  out.setRank(hello.rank);
  out.setInstanceHigh(hello.instance.high);
  out.setInstanceLow(hello.instance.low);
  out.setGeneration(whole(hello.generation));
  out.setPid(hello.pid);
  out.setHost(whole(hello.host));
  auto functions = out.initFunctions(static_cast<unsigned>(hello.functions.size()));
  for (unsigned i = 0; i < functions.size(); ++i) {
    functions[i].setId(hello.functions[i].id);
    functions[i].setName(whole(hello.functions[i].name));
    functions[i].setSignature(whole(hello.functions[i].signature));
  }
  out.setAuthentication({reinterpret_cast<const kj::byte*>(hello.authentication.data()),
                         hello.authentication.size()});
  out.setProbe(hello.probe);
  out.setLine(hello.line);
  out.setLaneOf(hello.lane_of);
  return to_meta(message);
}

Hello decode_hello(std::span<const std::byte> meta) {
  return read_meta<schema::Hello>(meta, [meta](schema::Hello::Reader in) {
    Hello hello;
    hello.min_version = in.getMinVersion();
    hello.max_version = in.getMaxVersion();
    hello.features = in.getFeatures();
    hello.name = to_string(in.getName());
    hello.rank = in.getRank();
    hello.instance = {in.getInstanceHigh(), in.getInstanceLow()};
    hello.generation = to_string(in.getGeneration());
    hello.pid = in.getPid();
    hello.host = to_string(in.getHost());
    const auto functions = in.getFunctions();
    if (functions.size() * kFunctionWords * sizeof(capnp::word) > meta.size()) {
      throw Error(Code::kCorrupt, "a list of functions that is longer than its message")
          .operation("read a message");
    }
    for (auto function : functions) {
      hello.functions.push_back(
          {function.getId(), to_string(function.getName()), to_string(function.getSignature())});
    }
    const auto authentication = in.getAuthentication();
    hello.authentication.assign(reinterpret_cast<const char*>(authentication.begin()),
                                authentication.size());
    hello.probe = in.getProbe();
    hello.line = in.getLine();
    hello.lane_of = in.getLaneOf();
    return hello;
  });
}

Buffer encode(const Error& error) {
  const std::string texts[] = {cut(error.message()),     cut(error.worker()),
                               cut(error.operation()),   cut(error.advice()),
                               cut(error.remote_type()), cut(error.trail())};
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  capnp::MallocMessageBuilder message(words_for(bytes, 1));
  auto out = message.initRoot<schema::Failure>();
  out.setCode(static_cast<uint16_t>(error.code()));
  out.setMessage(whole(texts[0]));
  out.setWorker(whole(texts[1]));
  out.setOperation(whole(texts[2]));
  out.setAdvice(whole(texts[3]));
  out.setRemoteType(whole(texts[4]));
  out.setTrail(whole(texts[5]));
  if (error.elapsed().count() >= 0) {
    out.setElapsedUs(std::chrono::duration_cast<Micros>(error.elapsed()).count());
  }
  return to_meta(message);
}

Error decode_error(std::span<const std::byte> meta) {
  return read_meta<schema::Failure>(meta, [](schema::Failure::Reader in) {
    const Code code = code_from_wire(in.getCode());
    Error error(code == Code::kOk ? Code::kUnknown : code, to_string(in.getMessage()));
    error.worker(to_string(in.getWorker())).operation(to_string(in.getOperation()));
    error.advice(to_string(in.getAdvice())).remote_type(to_string(in.getRemoteType()));
    if (in.getTrail().size() > 0) error.trail(to_string(in.getTrail()));
    constexpr int64_t kLongest = std::chrono::duration_cast<Micros>(Clock::duration::max()).count();
    if (in.getElapsedUs() >= 0) error.elapsed(Micros(std::min(in.getElapsedUs(), kLongest)));
    return error;
  });
}

}  // namespace farspan::wire
