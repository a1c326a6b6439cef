#include <farspan/c10d/backends/mpi/mail.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <farspan/c10d/backends/messages/told_error.h>
#include <farspan/c10d/backends/mpi/hub.h>

namespace farspan::dist::mpi {
namespace {

constexpr size_t kWholeBytes = size_t{64} << 10;  // what is sent without an offer
// As long as those that nobody has asked for are no more than this, for each pair of ranks.
constexpr uint64_t kUnclaimedBytes = uint64_t{4} << 20;

Error late(const Room& room, const Sending& sending) {
  return messages::not_taken_error(room.name_of(sending.message.peer), sending.message.tag);
}

Error late(const Room& room, const messages::Receive& receive) {
  const int peer = receive.wanted.peer;
  return messages::not_come_error(peer < 0 ? "any rank" : room.name_of(peer), receive.wanted.tag);
}

void copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

void tell(Endings& endings) noexcept {
  for (Ending& one : endings) {
    if (one.error) {
      one.future->set_error(std::move(*one.error));
    } else {
      one.future->set_value(one.rank);
    }
  }
  endings.clear();
}

Mail::Mail(Hub& hub, Wire& wire)
    : hub_(hub),
      wire_(wire),
      unclaimed_(static_cast<size_t>(wire.size())),
      claimed_(static_cast<size_t>(wire.size())) {}

bool Receiving::block(Deadline deadline) { return hub_.wait(*this, deadline, wanted.deadline); }
bool Sending::block(Deadline deadline) { return hub_.wait(*this, deadline, message.deadline); }

Future<int> Mail::send(Room& room, const Message& message, Block data) {
  if (auto why = room.why_none(message.peer)) return make_error_future<int>(std::move(*why));
  const int rank = room.spec.ranks[static_cast<size_t>(message.peer)];
  Header header;
  header.group = room.id;
  header.count = data.count;
  header.from = room.spec.rank;
  header.tag = message.tag;
  header.type = static_cast<uint8_t>(message.type);
  const auto sending = std::make_shared<Sending>(hub_, room, rank, message, data);
  if (sending->bytes.size() <= kWholeBytes &&
      take_room(rank, sizeof header + sending->bytes.size())) {
    header.kind = Kind::kMessage;
    wire_.send(rank, header, sending->bytes);
    return make_ready_future(int{message.peer});
  }
  header.kind = Kind::kOffer;
  header.number = next_offer_++;
  wire_.send(rank, header);
  offers_.emplace(header.number, sending);
  return Future<int>(sending);
}

void Mail::post(Room& room, const std::shared_ptr<Receiving>& receive, Endings& endings) {
  if (auto arrived = room.inbox.post(receive)) {
    match(room, arrived->envelope, std::move(arrived->content), receive, endings);
  } else if (auto why = room.why_none(receive->wanted.peer)) {
    room.inbox.withdraw(*receive);
    endings.push_back({receive, -1, std::move(why)});
  }
}

// A message and the receive it goes to, which the inbox no longer has.
void Mail::match(Room& room, messages::Envelope envelope, Room::Content content,
                 const std::shared_ptr<messages::Receive>& receive, Endings& endings) {
  std::optional<Error> why;
  if (!receive->takes(envelope)) {
    why = receive->refusal(envelope, room.name_of(envelope.from), room.name_of(room.spec.rank));
  }
  if (content.offer == 0) {
    claim(content.packet);
    if (!why) copy({receive->place.data, envelope.bytes()}, content.packet.content());
    endings.push_back({receive, envelope.from, std::move(why)});
    return;
  }
  Header answer;
  answer.group = room.id;
  answer.number = content.offer;
  answer.from = room.spec.rank;
  answer.kind = why ? Kind::kRefuse : Kind::kAccept;
  if (why) {
    const std::string told = messages::ToldError::of(*why).text();
    wire_.send(content.rank, answer, std::as_bytes(std::span(told)));
    endings.push_back({receive, -1, std::move(why)});
    return;
  }
  wire_.send(content.rank, answer);
  const std::span<std::byte> place(receive->place.data, envelope.bytes());
  if (place.empty()) {  // it was offered because there was no room
    endings.push_back({receive, envelope.from, std::nullopt});
    return;
  }
  fillings_.insert_or_assign({content.rank, content.offer},
                             Filling{room.id, receive, envelope.from, place});
}

void Mail::take(Room& room, Packet packet, Endings& endings) {
  const Header header = packet.header;
  switch (header.kind) {
    case Kind::kMessage:
    case Kind::kOffer: {
      const messages::Envelope envelope{header.from, header.tag, static_cast<DType>(header.type),
                                        header.count};
      Room::Content content{{}, packet.rank, header.number};
      if (header.kind == Kind::kMessage) {
        if (packet.content().size() != envelope.bytes()) {
          throw Error(Code::kCorrupt, "a message of another size than it says");
        }
        content.packet = std::move(packet);
      }
      if (const auto receive = room.inbox.match(envelope)) {
        match(room, envelope, std::move(content), receive, endings);
      } else {
        room.inbox.keep({envelope, std::move(content)});
      }
      return;
    }
    case Kind::kAccept: {
      const auto found = offers_.find(header.number);
      if (found != offers_.end()) found->second->is_accepted = true;
      return;
    }
    case Kind::kPart:
      return take_part(packet, endings);
    case Kind::kWithdraw:
      room.inbox.drop_if([&](const Room::Inbox::Arrived& one) {
        return one.content.rank == packet.rank && one.content.offer == header.number;
      });
      if (const auto found = fillings_.find({packet.rank, header.number});
          found != fillings_.end()) {
        Error why(Code::kTimeout,
                  room.name_of(header.from) + " gave up sending before all had come");
        endings.push_back({found->second.receive, -1, std::move(why)});
        fillings_.erase(found);
      }
      return;
    case Kind::kRefuse: {
      const auto found = offers_.find(header.number);
      if (found == offers_.end()) return;
      Error why = messages::ToldError::from(packet.content());
      why.worker(room.name_of(header.from));
      endings.push_back({found->second, -1, std::move(why)});
      offers_.erase(found);
      return;
    }
    default:
      return;
  }
}

// The bytes that a message counts for: its header's, too, so that many small ones are limited.
bool Mail::take_room(int rank, uint64_t bytes) noexcept {
  uint64_t& unclaimed = unclaimed_[static_cast<size_t>(rank)];
  if (unclaimed + bytes > kUnclaimedBytes) return false;
  unclaimed += bytes;
  return true;
}

void Mail::give_room(int rank, uint64_t bytes) noexcept {
  uint64_t& unclaimed = unclaimed_[static_cast<size_t>(rank)];
  unclaimed -= std::min(unclaimed, bytes);
}

// Told in large steps: a sender without room offers what it has, and needs no word then.
void Mail::claim(const Packet& message) {
  // Who sends to itself may wait for nobody else, so at once.
  if (message.rank == wire_.rank()) return give_room(message.rank, message.bytes);
  uint64_t& claimed = claimed_[static_cast<size_t>(message.rank)];
  claimed += message.bytes;
  if (claimed < kUnclaimedBytes / 4) return;
  Header word;
  word.kind = Kind::kClaimed;
  word.number = std::exchange(claimed, 0);
  wire_.send(message.rank, word);
}

void Mail::drop(const Packet& packet) {
  if (packet.header.kind == Kind::kMessage) claim(packet);
}

void Mail::drop_arrived(Room& room) {
  room.inbox.drop_if([this](const Room::Inbox::Arrived& one) {
    if (one.content.offer == 0) claim(one.content.packet);
    return true;
  });
}

void Mail::take_part(const Packet& packet, Endings& endings) {
  const auto found = fillings_.find({packet.rank, packet.header.number});
  if (found == fillings_.end()) return;  // its receive was given up
  Filling& filling = found->second;
  const auto content = packet.content();
  if (content.size() > filling.rest.size()) {
    throw Error(Code::kCorrupt, "a message of another size than it was offered with");
  }
  copy(filling.rest, content);
  filling.rest = filling.rest.subspan(content.size());
  if (!filling.rest.empty()) return;
  endings.push_back({filling.receive, filling.from, std::nullopt});
  fillings_.erase(found);
}

void Mail::advance(Endings& endings) {
  for (auto one = offers_.begin(); one != offers_.end();) {
    Sending& sending = *one->second;
    Header header;
    header.group = sending.group;
    header.number = one->first;
    header.kind = Kind::kPart;
    while (sending.is_accepted && !sending.bytes.empty() &&
           wire_.under_way(sending.rank) < kWindowBytes) {
      const size_t count = std::min(sending.bytes.size(), kPartBytes);
      wire_.send(sending.rank, header, sending.bytes.first(count));
      sending.bytes = sending.bytes.subspan(count);
    }
    if (sending.is_accepted && sending.bytes.empty()) {
      endings.push_back({one->second, sending.message.peer, std::nullopt});
      one = offers_.erase(one);
    } else {
      ++one;
    }
  }
}

void Mail::give_up_sending(const WhySent& why_ended, Endings& endings) {
  for (auto one = offers_.begin(); one != offers_.end();) {
    auto why = why_ended(*one->second);
    if (!why) {
      ++one;
      continue;
    }
    Header header;
    header.group = one->second->group;
    header.number = one->first;
    header.from = one->second->from;
    header.kind = Kind::kWithdraw;
    wire_.send(one->second->rank, header);
    endings.push_back({one->second, -1, std::move(why)});
    one = offers_.erase(one);
  }
}

// What comes for it later is thrown away.
void Mail::give_up_filling(const WhyFilled& why_ended, Endings& endings) {
  for (auto one = fillings_.begin(); one != fillings_.end();) {
    auto why = why_ended(one->second);
    if (!why) {
      ++one;
      continue;
    }
    endings.push_back({one->second.receive, -1, std::move(why)});
    one = fillings_.erase(one);
  }
}

void Mail::end_hopeless(Room& room, const WhyNone& why_none, Endings& endings) {
  for (auto& receive : room.inbox.posted()) {
    auto why = why_none(receive->wanted.peer);
    if (!why) continue;
    room.inbox.withdraw(*receive);
    endings.push_back({std::move(receive), -1, std::move(why)});
  }
  give_up_sending(
      [&](const Sending& one) {
        return one.group == room.id ? why_none(one.message.peer) : std::nullopt;
      },
      endings);
  give_up_filling(
      [&](const Filling& one) { return one.group == room.id ? why_none(one.from) : std::nullopt; },
      endings);
}

void Mail::end_all(const Error& why, Endings& endings) {
  for (auto& [id, sending] : offers_) endings.push_back({sending, -1, why});
  for (auto& [id, filling] : fillings_) endings.push_back({filling.receive, -1, why});
  offers_.clear();
  fillings_.clear();
}

void Mail::expire(Room& room, Endings& endings) {
  for (auto& receive : room.inbox.posted()) {
    if (!receive->wanted.deadline.expired()) continue;
    room.inbox.withdraw(*receive);
    Error why = late(room, *receive);
    endings.push_back({std::move(receive), -1, std::move(why)});
  }
  give_up_sending(
      [&](const Sending& one) {
        const bool ends = one.group == room.id && one.message.deadline.expired();
        return ends ? std::optional(late(room, one)) : std::nullopt;
      },
      endings);
  give_up_filling(
      [&](const Filling& one) {
        const bool ends = one.group == room.id && one.receive->wanted.deadline.expired();
        return ends ? std::optional(late(room, *one.receive)) : std::nullopt;
      },
      endings);
}

}  // namespace farspan::dist::mpi
