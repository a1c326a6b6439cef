#include <farspan/rref/messages.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include <farspan/c10d/values/message.h>
#include <farspan/rref/rref.capnp.h>

namespace farspan::rref {
namespace {

void write(schema::Run::Builder out, const WorkerRun& run) {
  out.setRank(run.rank);
  out.setInstance(run.instance);
}
WorkerRun read(schema::Run::Reader in) { return {in.getRank(), in.getInstance()}; }

void write(schema::RRef::Builder out, const RRefId& id) {
  write(out.initCreator(), id.creator);
  write(out.initOwner(), id.owner);
  out.setSerial(id.serial);
}
RRefId read(schema::RRef::Reader in) {
  return {read(in.getCreator()), read(in.getOwner()), in.getSerial()};
}

void write(schema::Fork::Builder out, const ForkId& id) {
  write(out.initParent(), id.parent);
  out.setSerial(id.serial);
}
ForkId read(schema::Fork::Reader in) { return {read(in.getParent()), in.getSerial()}; }

void write(schema::Reference::Builder out, const ForkData& data) {
  write(out.initRref(), data.rref);
  write(out.initFork(), data.fork);
  out.setWhat(data.what);
}
ForkData read(schema::Reference::Reader in) {
  const auto what = in.getWhat();
  return {read(in.getRref()), read(in.getFork()), std::string(what.cStr(), what.size())};
}

std::vector<std::byte> finished(MetaBuilder& builder) {
  const auto bytes = builder.finish();
  return {bytes.begin(), bytes.end()};
}

// Bytes that lie inside another message are aligned to nothing in particular.
template <class Schema, class Fn>
auto decode(std::span<const std::byte> bytes, Fn&& fn) {
  std::vector<uint64_t> aligned((bytes.size() + 7) / 8);
  if (!bytes.empty()) std::memcpy(aligned.data(), bytes.data(), bytes.size());
  return guard_read([&] {
    MetaReader reader({reinterpret_cast<const std::byte*>(aligned.data()), bytes.size()});
    return fn(reader.root<Schema>());
  });
}

}  // namespace

std::vector<std::byte> encode(const ForkData& data) {
  MetaBuilder builder;
  write(builder.init_root<schema::Reference>(), data);
  return finished(builder);
}

std::vector<std::byte> encode(const Subject& subject) {
  MetaBuilder builder;
  auto out = builder.init_root<schema::Subject>();
  if (subject.made) write(out.initMade(), *subject.made);
  if (subject.self) write(out.initSelf(), *subject.self);
  if (subject.place) out.setPlace(static_cast<int16_t>(*subject.place));
  return finished(builder);
}

std::vector<std::byte> encode(const ControlFrame& frame) {
  MetaBuilder builder;
  auto out = builder.init_root<schema::Control>();
  write(out.initFrom(), frame.from);
  write(out.initTo(), frame.to);
  out.setBase(frame.base);
  out.setFirst(frame.first);
  auto items = out.initItems(static_cast<unsigned>(frame.items.size()));
  for (unsigned i = 0; i < items.size(); ++i) {
    items[i].setKind(static_cast<uint8_t>(frame.items[i].kind));
    write(items[i].initRref(), frame.items[i].rref);
    write(items[i].initFork(), frame.items[i].fork);
  }
  out.setAck(frame.ack);
  auto refused = out.initRefused(static_cast<unsigned>(frame.refused.size()));
  for (unsigned i = 0; i < refused.size(); ++i) {
    refused[i].setSequence(frame.refused[i].sequence);
    refused[i].setReason(static_cast<uint8_t>(frame.refused[i].reason));
  }
  out.setProbe(frame.probe);
  out.setFence(frame.fence);
  return finished(builder);
}

ForkData decode_fork(std::span<const std::byte> bytes) {
  return decode<schema::Reference>(bytes, [](schema::Reference::Reader in) { return read(in); });
}

Subject decode_subject(std::span<const std::byte> bytes) {
  return decode<schema::Subject>(bytes, [](schema::Subject::Reader in) {
    Subject subject;
    if (in.hasMade()) subject.made = read(in.getMade());
    if (in.hasSelf()) subject.self = read(in.getSelf());
    if (in.getPlace() >= -1) subject.place = in.getPlace();
    return subject;
  });
}

ControlFrame decode_control(std::span<const std::byte> bytes) {
  return decode<schema::Control>(bytes, [](schema::Control::Reader in) {
    ControlFrame frame;
    frame.from = read(in.getFrom());
    frame.to = read(in.getTo());
    frame.base = in.getBase();
    frame.first = in.getFirst();
    for (const auto item : in.getItems()) {
      frame.items.push_back(
          {static_cast<ControlKind>(item.getKind()), read(item.getRref()), read(item.getFork())});
    }
    frame.ack = in.getAck();
    for (const auto item : in.getRefused()) {
      frame.refused.push_back({item.getSequence(), static_cast<Refusal>(item.getReason())});
    }
    frame.probe = in.getProbe();
    frame.fence = in.getFence();
    return frame;
  });
}

}  // namespace farspan::rref
