#include "support/sim_network.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace farspan::testing {
namespace {

// Larger segments come from a memory pool, aligned to cache lines.
constexpr size_t kInlineSegment = 16 << 10;

// A copy as the agent's reader makes it: on 8 bytes and no more, so that who needs more shows; and
// with nothing behind it, so that AddressSanitizer sees who reads on.
Buffer received(std::span<const std::byte> bytes, size_t padded_size) {
  Buffer buffer;
  if (padded_size > kInlineSegment) {
    const size_t rounded = (padded_size + 63) / 64 * 64;
    auto* data = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
    buffer = Buffer(data, padded_size, std::shared_ptr<void>(data, std::free));
  } else {
    buffer = Buffer::allocate(8 + padded_size).slice(8, padded_size);
  }
  if (!bytes.empty()) std::memcpy(buffer.data(), bytes.data(), bytes.size());
  if (padded_size > bytes.size()) {
    std::memset(buffer.data() + bytes.size(), 0, padded_size - bytes.size());
  }
  return buffer;
}

wire::InFrame copy_of(const wire::OutFrame& frame) {
  wire::InFrame copy;
  copy.header = frame.header;
  copy.header.meta_bytes = static_cast<uint32_t>(wire::padded(frame.meta.size()));
  copy.header.segment_count = static_cast<uint32_t>(frame.segments.size());
  copy.header.payload_bytes = 0;
  copy.meta = received(frame.meta, copy.header.meta_bytes);
  for (const Buffer& segment : frame.segments) {
    copy.header.payload_bytes += wire::padded(segment.size());
    copy.segments.push_back(received(segment.span(), segment.size()));
  }
  copy.borrowed = frame.lent;
  return copy;
}

// As two connections would: frames share no bytes.
wire::InFrame copy_of(const wire::InFrame& frame) {
  wire::OutFrame out;
  out.header = frame.header;
  out.meta = frame.meta.span();
  out.segments = frame.segments;
  out.lent = std::static_pointer_cast<wire::Lent>(frame.borrowed);
  return copy_of(out);
}

}  // namespace

SimNetwork::SimNetwork(SimOptions options)
    : options_(options),
      scheduler_(options.seed, options.max_steps, trace_, *this),
      network_random_(options.seed ^ 0x6e6574),
      test_random_(options.seed ^ 0x74657374) {
  scheduler_.set_describer([this] { return describe(); });
  for (int rank = 0; rank < options.workers; ++rank) {
    workers_.push_back({"w" + std::to_string(rank), rank});
  }
  messengers_.resize(workers_.size());
  for (int a = 0; a < options.workers; ++a) {
    for (int b = 0; b < options.workers; ++b) {
      if (a <= b) lines_[{a, b}] = {};
      ends_[{a, b}] = {};
    }
  }
  for (int rank = 0; rank < options.workers; ++rank) add_messenger(rank);
  for (auto& [pair, end] : ends_) end.instance = at(pair.second)->instance();
}

SimNetwork::~SimNetwork() { stop(); }

void SimNetwork::stop() {
  if (std::exchange(stopped_, true)) return;
  const Error why(Code::kShutdown, "this worker has been shut down");
  for (const auto& messenger : messengers_) {
    if (messenger->alive()) messenger->die(why);
  }
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) drop_frames(from, to, false);
  }
  lanes_.clear();
  strays_.clear();
  scheduler_.stop();
}

void SimNetwork::add_messenger(int rank) {
  const wire::InstanceId instance{network_random_.next(), network_random_.next()};
  messengers_[static_cast<size_t>(rank)] =
      std::make_shared<SimMessenger>(*this, rank, ++last_life_, instance);
}

int SimNetwork::rank_of(std::string_view wanted) const {
  for (const WorkerInfo& worker : workers_) {
    if (worker.name == wanted) return worker.rank;
  }
  throw Error(Code::kInvalidArgument, "this World has no worker '" + std::string(wanted) + "'")
      .advice("they are called w0 to w" + std::to_string(size() - 1));
}

const std::shared_ptr<SimMessenger>& SimNetwork::at(int rank) const {
  if (rank < 0 || rank >= size()) {
    throw Error(Code::kInvalidArgument, "this World has no worker " + std::to_string(rank));
  }
  return messengers_[static_cast<size_t>(rank)];
}

std::string SimNetwork::label(const wire::FrameHeader& header) {
  std::string text(name_of(header.kind));
  if (header.flags & wire::kOneWay) return text + " message";
  text += " " + number_of(header.request_id);
  if (header.flags & wire::kReply) text += header.flags & wire::kFailed ? "'s failure" : "'s reply";
  return text;
}

// Slot, and how often it was used before: see PendingCalls::add.
std::string SimNetwork::number_of(uint64_t request_id) {
  const uint64_t turn = request_id >> 32;
  return "#" + std::to_string(request_id & 0xffffffff) +
         (turn > 1 ? "." + std::to_string(turn) : "");
}

int SimNetwork::open_lines(int rank) const {
  return static_cast<int>(std::count_if(lines_.begin(), lines_.end(), [&](const auto& entry) {
    return entry.second.open && (entry.first.first == rank || entry.first.second == rank);
  }));
}

void SimNetwork::send_reply(SimMessenger& from, int to, int epoch, wire::OutFrame& frame) {
  if (epoch != line(from.rank_, to).epoch) {
    return note(name(from.rank_) + " answers " + label(frame.header) + ": its line is gone");
  }
  from.counters_.bytes_sent += frame.bytes();
  send(from, to, frame);
}

void SimNetwork::send(SimMessenger& from, int to, wire::OutFrame& frame) {
  Item item;
  item.from = from.rank_;
  item.to = to;
  item.frame = copy_of(frame);
  std::string text = name(item.from) + " > " + name(to) + ": " + label(frame.header) + ", " +
                     std::to_string(frame.segments.size()) + " segments of " +
                     std::to_string(item.frame.header.payload_bytes) + " bytes";
  if (epoch_seen(item.from, to) != line(item.from, to).epoch) {
    return note(text + ", on a line that is gone");
  }
  item.epoch = epoch_seen(item.from, to);
  const auto cut = cuts_.find({item.from, to});
  if (cut != cuts_.end() && cut->second == Cut::kSilent) return note(text + ", into a partition");
  const bool reply = item.frame.is_reply();
  const Faults::Verdict verdict =
      faults_.judge({frame.header.kind, reply, name(item.from), name(to)}, network_random_);
  line(item.from, to).open = true;
  if (verdict.loss) {
    note(text + ", lost");
    return lose(item, *verdict.loss);
  }
  note(text);
  item.to_life = at(to)->life();
  item.not_before = scheduler_.now() + network_random_.up_to(options_.max_latency) + verdict.delay;
  std::vector<Item> copies;
  for (const Micros after : verdict.copies) {
    copies.push_back(item);
    copies.back().frame = copy_of(item.frame);
    copies.back().not_before += after;
    copies.back().copy = true;
  }
  if (verdict.fails_call) {
    lose(item, Loss::kFailsCall);
    strays_.push_back(std::move(item));
  } else {
    put_on_line(std::move(item));
  }
  for (Item& copy : copies) {
    const bool right_behind = copy.not_before <= scheduler_.now();
    right_behind ? put_on_line(std::move(copy)) : strays_.push_back(std::move(copy));
  }
}

void SimNetwork::put_on_line(Item item) {
  auto& lane = lanes_[{item.from, item.to}];
  item.to_life = 0;
  if (!lane.empty()) item.not_before = std::max(item.not_before, lane.back().not_before);
  lane.push_back(std::move(item));
}

// The frame itself is gone already.
void SimNetwork::lose(const Item& item, Loss loss) {
  if (loss == Loss::kBreaksLine)
    return end_line(item.from, item.to, Error(Code::kDisconnected, "the connection failed"));
  if (loss == Loss::kFailsCall) {
    fail_call_of(item, Error(Code::kDisconnected, "the connection failed"));
  }
}

// Tells the caller of the call that a request or a reply belongs to, soon.
void SimNetwork::fail_call_of(const Item& item, const Error& why) {
  if (item.frame.header.flags & wire::kOneWay) return;
  const bool reply = item.frame.is_reply();
  const auto caller = at(reply ? item.to : item.from);
  if (!caller->alive()) return;
  scheduler_.at(scheduler_.now(), caller->life(), caller->self().name + "'s call fails",
                [caller, why, peer = reply ? item.from : item.to, epoch = item.epoch,
                 id = item.frame.header.request_id] { caller->fail_call(peer, epoch, id, why); });
}

size_t SimNetwork::deliverable() {
  choices_.clear();
  for (auto it = lanes_.begin(); it != lanes_.end();) {
    if (it->second.empty()) {
      it = lanes_.erase(it);
      continue;
    }
    const Item& item = it->second.front();
    if (item.not_before <= scheduler_.now() && !held(item)) choices_.push_back({&it->second, 0});
    ++it;
  }
  for (size_t i = 0; i < strays_.size(); ++i) {
    if (strays_[i].not_before <= scheduler_.now() && !held(strays_[i])) {
      choices_.push_back({nullptr, i});
    }
  }
  return choices_.size();
}

TimePoint SimNetwork::next_arrival() {
  TimePoint next = TimePoint::max();
  const auto look = [&](const Item& item) {
    if (item.not_before > scheduler_.now() && !held(item)) next = std::min(next, item.not_before);
  };
  for (const auto& [pair, lane] : lanes_) {
    if (!lane.empty()) look(lane.front());
  }
  for (const Item& item : strays_) look(item);
  return next;
}

bool SimNetwork::held(const Item& item) const {
  if (clogged_.count(item.from) || clogged_.count(item.to)) return true;
  if (clogged_lanes_.count({item.from, item.to}) || frozen_.count(item.to)) return true;
  const auto cut = cuts_.find({item.from, item.to});
  return item.end && cut != cuts_.end() && cut->second == Cut::kSilent;
}

void SimNetwork::deliver(size_t which) {
  const Choice choice = choices_[which];
  if (choice.lane) {
    Item item = std::move(choice.lane->front());
    choice.lane->pop_front();
    item.end ? arrive_end(item) : arrive(std::move(item));
  } else {
    Item item = std::move(strays_[choice.stray]);
    strays_.erase(strays_.begin() + static_cast<std::ptrdiff_t>(choice.stray));
    arrive(std::move(item));
  }
}

void SimNetwork::arrive(Item item) {
  const std::string text =
      name(item.to) + " gets " + label(item.frame.header) + " from " + name(item.from);
  const auto receiver = at(item.to);
  const auto cut = cuts_.find({item.from, item.to});
  if (cut != cuts_.end() && cut->second == Cut::kSilent) return note(text + ": in a partition");
  if (item.to_life != 0 && item.to_life != receiver->life()) return note(text + ": for its past");
  if (!receiver->alive() || cut != cuts_.end()) {
    note(text + ": refused");
    const Error why(Code::kUnavailable,
                    receiver->alive() ? "no way leads there" : "nobody listens");
    fail_call_of(item, why);
    const auto sender = at(item.from);
    if (!sender->alive()) return;
    scheduler_.at(scheduler_.now(), sender->life(), sender->self().name + " cannot connect",
                  [sender, to = item.to, why] { sender->tell_loss(to, why); });
    return;
  }
  note(text + (item.copy ? ", again" : ""));
  wire::OutFrame sent;
  sent.header = item.frame.header;
  sent.meta = item.frame.meta.span();
  sent.segments = item.frame.segments;
  receiver->count_received(item.from, item.epoch, sent.bytes());
  if (at(item.from)->alive() && item.to_life == 0) {
    ends_[{item.to, item.from}].instance = at(item.from)->instance();
  }
  if (item.frame.is_reply()) {
    receiver->on_reply(item.from, item.epoch, std::move(item.frame), item.copy);
  } else {
    receiver->on_request(item.from, item.epoch, std::move(item.frame));
  }
}

void SimNetwork::arrive_end(const Item& item) {
  const auto receiver = at(item.to);
  if (!receiver->alive()) return;
  LineEnd& end = ends_[{item.to, item.from}];
  if (end.epoch > item.epoch) return;  // of a line that it never had
  end.epoch = item.epoch + 1;
  note(name(item.to) + " hears that its line to " + name(item.from) + " is gone");
  receiver->on_line_end(item.from, item.epoch, item.why);
}

void SimNetwork::drop_frames(int from, int to, bool may_straggle) {
  const auto lane = lanes_.find({from, to});
  if (lane == lanes_.end()) return;
  std::deque<Item> kept, dropped;
  for (Item& item : lane->second) {
    if (item.end) {
      kept.push_back(std::move(item));
    } else if (may_straggle && network_random_.chance(0.5)) {
      item.to_life = at(to)->life();
      strays_.push_back(std::move(item));
    } else {
      dropped.push_back(std::move(item));
    }
  }
  lane->second = std::move(kept);
}

void SimNetwork::put_end(int from, int to, int epoch, const Error& why) {
  Item end;
  end.from = from;
  end.to = to;
  end.epoch = epoch;
  end.not_before = scheduler_.now();
  end.end = true;
  end.why = why;
  put_on_line(std::move(end));
}

// Both ends are told, each when what is before it on its lane has arrived.
void SimNetwork::end_line(int from, int to, const Error& why) {
  Line& between = line(from, to);
  if (!std::exchange(between.open, false)) return;
  const int epoch = between.epoch++;
  drop_frames(from, to, options_.stragglers);
  put_end(from, to, epoch, why);
  if (from == to) return;
  drop_frames(to, from, options_.stragglers);
  put_end(to, from, epoch, why);
}

// As when a worker closes its end: what it has sent arrives, and behind it the end; what comes is
// not read any more.
void SimNetwork::give_up(int rank, int peer, const std::string& why) {
  note(name(rank) + " gives " + name(peer) + " up");
  Item end;
  end.from = peer;
  end.to = rank;
  end.epoch = epoch_seen(rank, peer);
  end.end = true;
  end.why = Error(Code::kDisconnected, why);
  Line& between = line(rank, peer);
  if (end.epoch == between.epoch) {  // else the other end has been told
    between.open = false;
    ++between.epoch;
    drop_frames(peer, rank, options_.stragglers);
    if (peer != rank) {
      put_end(rank, peer, end.epoch,
              Error(Code::kDisconnected, "the connection was closed by the other side"));
    }
  }
  arrive_end(end);
}

void SimNetwork::break_line(const std::string& a, const std::string& b) {
  note("the line between " + a + " and " + b + " breaks");
  end_line(rank_of(a), rank_of(b), Error(Code::kDisconnected, "the connection failed"));
}

void SimNetwork::end_life(int rank, Sent sent, const Error& why) {
  const std::shared_ptr<SimMessenger> messenger = at(rank);
  if (!messenger->alive()) return;
  for (int other = 0; other < size(); ++other) {
    lanes_.erase({other, rank});
    if (other == rank) continue;
    if (sent == Sent::kLost) drop_frames(rank, other, false);
    Line& between = line(rank, other);
    if (!std::exchange(between.open, false)) continue;
    put_end(rank, other, between.epoch++, why);
  }
  std::erase_if(strays_, [&](const Item& item) {
    return item.to == rank || (sent == Sent::kLost && item.from == rank);
  });
  frozen_.erase(rank);
  messenger->die(Error(Code::kShutdown, "this worker has been shut down"));
  scheduler_.end_owner(messenger->life());
}

void SimNetwork::kill(const std::string& worker, Sent sent) {
  note(worker + " is killed");
  end_life(rank_of(worker), sent,
           Error(Code::kDisconnected, "the connection was closed by the other side"));
}

void SimNetwork::leave(const std::string& worker) {
  note(worker + " leaves");
  end_life(rank_of(worker), Sent::kArrives, Error(Code::kShutdown, "it has been shut down"));
}

const std::shared_ptr<SimMessenger>& SimNetwork::restart(const std::string& worker) {
  const int rank = rank_of(worker);
  if (alive(rank)) kill(worker);
  note(worker + " starts again");
  add_messenger(rank);
  for (int other = 0; other < size(); ++other) {
    ends_[{rank, other}] = {line(rank, other).epoch, at(other)->instance()};
  }
  return at(rank);
}

void SimNetwork::clog(const std::string& worker) {
  note(worker + " is clogged");
  clogged_.insert(rank_of(worker));
}
void SimNetwork::unclog(const std::string& worker) {
  note(worker + " is unclogged");
  clogged_.erase(rank_of(worker));
}
void SimNetwork::clog(const std::string& from, const std::string& to) {
  note(from + " > " + to + " is clogged");
  clogged_lanes_.insert({rank_of(from), rank_of(to)});
}
void SimNetwork::unclog(const std::string& from, const std::string& to) {
  note(from + " > " + to + " is unclogged");
  clogged_lanes_.erase({rank_of(from), rank_of(to)});
}

void SimNetwork::freeze(const std::string& worker) {
  note(worker + " stands still");
  frozen_.insert(rank_of(worker));
  scheduler_.freeze(at(worker)->life());
}
void SimNetwork::thaw(const std::string& worker) {
  note(worker + " moves again");
  frozen_.erase(rank_of(worker));
  scheduler_.thaw(at(worker)->life());
}

void SimNetwork::swizzle_clog(Micros duration) {
  std::vector<int> chosen;
  for (int rank = 0; rank < size(); ++rank) {
    if (network_random_.chance(0.5)) chosen.push_back(rank);
  }
  if (chosen.empty()) chosen.push_back(static_cast<int>(network_random_.below(workers_.size())));
  const Micros half = duration / 2;
  const TimePoint begin = scheduler_.now();
  for (const bool clogs : {true, false}) {
    network_random_.shuffle(chosen);
    for (size_t i = 0; i < chosen.size(); ++i) {
      const Micros after = (clogs ? Micros(0) : half) + half * (i + 1) / chosen.size();
      const std::string worker = name(chosen[i]);
      scheduler_.at(begin + after, 0, (clogs ? "to clog " : "to unclog ") + worker,
                    [this, worker, clogs] { clogs ? clog(worker) : unclog(worker); });
    }
  }
}

void SimNetwork::partition(const Names& side, const Names& other, Cut cut) {
  for (const std::string& a : side) {
    for (const std::string& b : other) {
      note("a partition between " + a + " and " + b);
      cuts_[{rank_of(a), rank_of(b)}] = cut;
      cuts_[{rank_of(b), rank_of(a)}] = cut;
      if (cut == Cut::kNoticed) {
        end_line(rank_of(a), rank_of(b), Error(Code::kDisconnected, "the connection failed"));
      }
    }
  }
}

void SimNetwork::heal() {
  note("partitions heal");
  cuts_.clear();
}

std::string SimNetwork::describe() const {
  std::string text =
      "World of seed " + std::to_string(options_.seed) + ", " + scheduler_.describe();
  for (const auto& messenger : messengers_) {
    const std::string worker = messenger->self().name;
    if (!messenger->alive()) text += "  dead: " + worker + "\n";
    if (frozen_.count(messenger->self().rank)) text += "  stands still: " + worker + "\n";
    text += messenger->describe();
  }
  const auto show = [&](const Item& item, const char* how) {
    text += "  in flight: " + name(item.from) + " > " + name(item.to) + ": " +
            (item.end ? "the end of the line" : label(item.frame.header)) + how +
            (held(item) ? ", held up\n" : "\n");
  };
  for (const auto& [pair, lane] : lanes_) {
    for (const Item& item : lane) show(item, "");
  }
  for (const Item& item : strays_) show(item, ", in no order");
  text += faults_.describe();
  return text + "the last events:\n" + trace_.last(20);
}

}  // namespace farspan::testing
