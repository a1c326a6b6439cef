#include <farspan/c10d/backends/cpu/hosts/exchange.h>

namespace farspan::dist::cpu::hosts {
namespace {

constexpr size_t kManyUnderWay = 64;  // from then on those that have ended are forgotten

}  // namespace

Exchange::~Exchange() {
  if (under_way_.empty()) return;
  channel_.post->fail(channel_.group, Error(Code::kCancelled, "the collective has failed"));
  // The memory is the caller's again when each has ended; now none can wait for another rank.
  for (const auto& [rank, message] : under_way_) message.wait_for(Millis::max());
}

Message Exchange::message(int rank) const {
  Message message;
  message.peer = rank;
  message.type = DType::UINT8;
  return message;  // without a deadline: it stays until all ranks know why the collective has
                   // failed
}

Exchange::Ticket Exchange::keep(int rank, Future<int> message) {
  const auto is_over = [](const Future<int>& one) { return one.ready() && !one.has_error(); };
  if (under_way_.size() >= kManyUnderWay) {
    std::erase_if(under_way_, [&](const Ticket& one) { return is_over(one.second); });
  }
  Ticket ticket{rank, std::move(message)};
  if (!is_over(ticket.second)) under_way_.push_back(ticket);
  return ticket;
}

Exchange::Ticket Exchange::send(int rank, std::span<const std::byte> bytes) {
  if (bytes.empty()) return {rank, make_ready_future(rank)};
  const Block block{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return keep(rank, channel_.post->send(channel_.group, *channel_.spec, message(rank), block));
}

Exchange::Ticket Exchange::receive(int rank, std::span<std::byte> bytes) {
  if (bytes.empty()) return {rank, make_ready_future(rank)};
  return keep(rank, channel_.post->recv(channel_.group, *channel_.spec, message(rank),
                                        {bytes.data(), bytes.size()}));
}

void Exchange::wait(const Ticket& ticket) {
  const auto& [rank, message] = ticket;
  if (!message.ready()) {
    const WaitsFor whom{channel_.spec->ranks[static_cast<size_t>(rank)], agreed_};
    team_.waits().begin(whom);
    if (!message.wait_until(deadline_)) throw team_.late(whom, begun_);
    if (!message.has_error()) team_.waits().end();
  }
  message.wait();
}

void Exchange::wait(std::vector<Ticket>& tickets) {
  for (const Ticket& ticket : tickets) wait(ticket);
  tickets.clear();
}

void Exchange::finish() {
  for (const Ticket& ticket : under_way_) wait(ticket);
  under_way_.clear();
}

}  // namespace farspan::dist::cpu::hosts
