#include <farspan/c10d/backends/cpu/hosts/meeting.h>

#include <cstring>

#include <farspan/c10d/backends/cpu/host/collectives.h>

namespace farspan::dist::cpu::hosts {

Meeting::Meeting(const Hosts& hosts, const Call& call)
    : hosts_(hosts), call_(call), exchange_(hosts.channel, hosts.team, call.deadline) {
  for (int other = 0; other < layout().hosts(); ++other) {
    if (other != host()) other_leads_.push_back(layout().at(other, 0));
  }
}

std::span<std::byte> Meeting::memory(size_t bytes) {
  return memory_.emplace_back(hosts_.scratch.allocate(bytes)).span();
}

void Meeting::enter() {
  host::barrier(team(), call_);
  if (!is_lead()) return;
  const auto own = std::as_bytes(std::span(&call_.signature, 1));
  for (const int lead : other_leads_) exchange_.send(lead, own);
}

void Meeting::agree() {
  if (is_lead()) {
    const auto signatures = memory(other_leads_.size() * sizeof(Signature));
    const auto of = [&](size_t i) {
      return signatures.subspan(i * sizeof(Signature), sizeof(Signature));
    };
    std::vector<Exchange::Ticket> tickets;
    for (size_t i = 0; i < other_leads_.size(); ++i) {
      tickets.push_back(exchange_.receive(other_leads_[i], of(i)));
    }
    exchange_.wait(tickets);
    for (size_t i = 0; i < other_leads_.size(); ++i) {
      Signature signature;
      std::memcpy(&signature, of(i).data(), sizeof signature);
      const auto differs =
          difference(name_of(rank()), call_.signature, name_of(other_leads_[i]), signature);
      if (differs) throw Error(Code::kShapeMismatch, *differs);
    }
  }
  exchange_.set_agreed();
}

void Meeting::meet() {
  enter();
  agree();
  host::barrier(team(), within());
}

Call Meeting::within(int root) const {
  Call call = call_;
  call.signature.root = root;
  if (call_.reduce() == ReduceOp::kAvg) {  // divided once, at the end
    call.signature.reduce = static_cast<uint8_t>(ReduceOp::kSum);
  }
  return call;
}

}  // namespace farspan::dist::cpu::hosts
