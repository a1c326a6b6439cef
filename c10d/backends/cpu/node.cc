#include <farspan/c10d/backends/cpu/node.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/late.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/descriptor.h>
#include <farspan/c10d/net/unix_socket.h>
#include <farspan/c10d/store/address_towards.h>

namespace farspan::dist::cpu {
namespace {

constexpr Millis kSendingTime{1'000};  // for what was sent, when this rank ends
constexpr Millis kTellingTime{100};    // for a line to one rank, to tell it of a failure

// Processes of one network share the loopback addresses: see net::host_id().
std::string network_of(const Address& address) {
  const auto boot = address.host.find('/');
  return address.host.substr(0, address.host.find('/', boot + 1));
}

constexpr size_t kIdleScratch = size_t{64} << 20;

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace

Node::Node(const std::shared_ptr<Store>& store, int rank, int world_size)
    : rank_(rank),
      world_size_(world_size),
      reactor_(std::make_shared<net::Reactor>(
          net::ReactorOptions{.threads = 2, .name = "farspan-node"})),
      loop_(std::make_shared<net::Loop>(reactor_->timers())),
      post_(std::make_shared<Post>(reactor_, loop_)),
      scratch_(net::MemoryPool::make({.max_idle_bytes = kIdleScratch})),
      departures_(store, rank) {
  scratch_->shrink_by(&reactor_->timers());
}

Node::~Node() { stop(); }

// What the reactor calls holds on to the node meanwhile, and must not be what ends it: its users
// share a handle of their own, with which it stops.
std::shared_ptr<Node> Node::handle(std::shared_ptr<Node> node) {
  Node* const place = node.get();
  return std::shared_ptr<Node>(place, [node = std::move(node)](Node*) mutable {
    if (!net::on_reactor_thread()) return node->stop();
    std::thread([node] { node->stop(); }).detach();
  });
}

std::shared_ptr<Node> Node::make(const BackendContext& context) {
  const std::shared_ptr<Node> node(
      new Node(context.store, context.group.rank, context.group.size()));
  const std::shared_ptr<Node> shared = handle(node);
  node->listen();
  node->meet(context);
  return shared;
}

void Node::listen() {
  reactor_->add(loop_);
  net::NamedSocket bound = net::bind_unix_socket();
  host_socket_ = bound.name;
  listening_ = loop_->listen_unix(bound.socket.release(), [this](int descriptor) {
    net::OwnedDescriptor visitor(descriptor);
    if (!net::is_same_user(visitor.get())) {
      return log(LogLevel::kWarning, "c10d/backends/cpu", "turned away another user's process");
    }
    add_line(std::move(visitor), -1);
  });
}

void Node::meet(const BackendContext& context) {
  Address own = Address::of_this_process(context.host_id);
  own.host_socket = host_socket_;
  own.post = post_->listen();
  for (const std::string& text :
       exchange(*context.store, "node", rank_, world_size_, own.text(), context.deadline)) {
    addresses_.push_back(Address::parse(text));
  }
  const auto is_near = [&](const Address& address) { return address.host == own.host; };
  if (!std::all_of(addresses_.begin(), addresses_.end(), is_near)) listen_to_hosts(context);
  open_post();
}

// Only then: while all ranks share a host, nothing listens on the network.
void Node::listen_to_hosts(const BackendContext& context) {
  std::string own = context.bind_host;
  if (own.empty()) own = address_towards(*context.store).value_or("");
  // Where the store lies on this host, the way to it need not be one for others.
  const bool is_of_use =
      !own.empty() &&
      (!context.bind_host.empty() || !is_loopback(own) ||
       std::all_of(addresses_.begin(), addresses_.end(), [&](const Address& address) {
         return network_of(address) == network_of(addresses_.front());
       }));
  if (!is_of_use) {
    throw Error(Code::kInvalidArgument, "no address of this host is known that other hosts reach")
        .advice("set InitOptions::bind_host");
  }
  const auto endpoints = exchange(*context.store, "network", rank_, world_size_,
                                  post_->listen_to_hosts(own), context.deadline);
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto place = static_cast<size_t>(rank);
    if (!shares_host(rank)) addresses_[place].post.endpoint = endpoints[place];
  }
}

void Node::open_post() {
  PostWorld world;
  world.rank = rank_;
  world.attach_bytes = tuning().attach;
  world.stripe_bytes = tuning().stripe;
  world.stripes = static_cast<size_t>(tuning().stripes);
  for (int rank = 0; rank < world_size_; ++rank) {
    world.addresses.push_back(addresses_[static_cast<size_t>(rank)].post);
    world.names.push_back(name_of(rank));
    world.is_far.push_back(!shares_host(rank));
  }
  const auto weak = weak_from_this();
  world.watch = [weak](int rank) {
    if (const auto self = weak.lock()) self->watch(rank);
  };
  world.on_gone = [weak](int rank) {
    if (const auto self = weak.lock()) self->note_gone(rank);
  };
  world.ask_fate = [weak, post = std::weak_ptr(post_)](int rank) {
    const auto self = weak.lock();
    if (!self) return;
    self->departures_.ask(rank, [post, rank](bool has_left) {
      if (const auto there = post.lock()) there->explain(rank, has_left);
    });
  };
  world.waits_for = [weak](uint64_t group) {
    const auto self = weak.lock();
    return self ? self->waits_for(group) : WaitsFor{};
  };
  world.on_failed = [weak](uint64_t group, const Failure& failure) {
    if (const auto self = weak.lock()) self->note_failure_soon(group, failure);
  };
  post_->open(std::move(world));
}

bool Node::shares_host(int rank) const {
  return addresses_[static_cast<size_t>(rank)].host == addresses_[static_cast<size_t>(rank_)].host;
}

std::vector<std::string> Node::hosts_of(const std::vector<int>& ranks) const {
  std::vector<std::string> hosts;
  for (const int rank : ranks) hosts.push_back(addresses_[static_cast<size_t>(rank)].host);
  return hosts;
}

std::string Node::name_of(int rank) const {
  return "rank " + std::to_string(rank) + " (" + addresses_[static_cast<size_t>(rank)].process +
         ")";
}

std::shared_ptr<HostLine> Node::add_line(net::OwnedDescriptor socket, int peer) {
  const std::weak_ptr<Node> weak = weak_from_this();
  auto line = std::make_shared<HostLine>(
      *reactor_, std::move(socket),
      [weak](HostLine& from, const HostMessage& message, net::OwnedDescriptor descriptor) {
        if (const auto self = weak.lock()) {
          self->on_message(from, message, std::move(descriptor));
        }
      },
      [weak](HostLine& from) {
        if (const auto self = weak.lock()) self->on_end(from);
      });
  line->set_peer(peer);
  {
    MutexLock lock(mutex_);
    if (stopped_) return nullptr;
    if (peer < 0) {
      visitors_.push_back(line);
    } else if (!lines_.emplace(peer, line).second) {
      return lines_[peer];  // another thread was quicker
    }
  }
  line->open();
  MutexLock lock(mutex_);
  if (stopped_) line->close();
  return line;
}

// Who asks, dials: two ranks may have a line each to the other.
std::shared_ptr<HostLine> Node::line_to(int rank, Deadline deadline) {
  {
    MutexLock lock(mutex_);
    const auto found = lines_.find(rank);
    if (found != lines_.end()) return found->second;
  }
  net::OwnedDescriptor socket =
      dial_host_socket(addresses_[static_cast<size_t>(rank)].host_socket, deadline);
  HostMessage hello;
  hello.rank = rank_;
  auto line = add_line(std::move(socket), rank);
  if (!line || !line->send(hello)) {
    throw gone_error(name_of(rank));
  }
  return line;
}

void Node::watch(int rank) noexcept {
  try {
    if (shares_host(rank) && rank != rank_) line_to(rank, Deadline::after(Millis(100)));
  } catch (const Error& error) {
    if (error.code() == Code::kDisconnected) post_->suspect(rank);
  }
}

WaitsFor Node::waits_for(uint64_t id) const noexcept {
  std::shared_ptr<Team> team;
  {
    MutexLock lock(mutex_);
    const auto wanted = wanted_.find(id);
    if (wanted != wanted_.end()) return {wanted->second.leader, false};
    team = team_of_locked(id);
  }
  return team ? team->waits().now() : WaitsFor{};
}

Late Node::find_late(uint64_t id, WaitsFor whom) const noexcept {
  for (int asked = 0; asked < world_size_; ++asked) {
    const auto next = post_->ask_waits(id, whom.rank, Deadline::after(kToFindLate));
    if (!next || next->rank < 0 || next->rank >= world_size_ || next->rank == rank_) break;
    whom = *next;
  }
  return {name_of(whom.rank), whom.has_called};
}

void Node::on_message(HostLine& line, const HostMessage& message, net::OwnedDescriptor descriptor) {
  switch (message.kind) {
    case HostMessage::kHello:
      if (message.rank >= 0 && message.rank < world_size_) line.set_peer(message.rank);
      return;
    case HostMessage::kAsk:
      return give(line, message);
    case HostMessage::kGive:
      return take(message, std::move(descriptor));
    case HostMessage::kLeft:
      return note_left(message.id, message.rank);
  }
}

// At once, or when this rank has come to its first collective.
void Node::give(HostLine& line, const HostMessage& asked) {
  HostMessage answer;
  answer.id = asked.id;
  answer.rank = rank_;
  MutexLock lock(mutex_);
  const auto offer = offers_.find(asked.id);
  if (offer != offers_.end()) {
    answer.kind = HostMessage::kGive;
    if (!line.send(answer, offer->second.memory.get())) return line.close();
    if (--offer->second.left == 0) offers_.erase(offer);
  } else if (forgotten_.contains(asked.id)) {
    answer.kind = HostMessage::kLeft;
    if (!line.send(answer)) line.close();
  } else {
    asked_.emplace(asked.id, line.weak_from_this());
  }
}

void Node::take(const HostMessage& given, net::OwnedDescriptor descriptor) {
  std::optional<Promise<net::OwnedDescriptor>> wanted;
  {
    MutexLock lock(mutex_);
    const auto found = wanted_.find(given.id);
    if (found == wanted_.end()) return;
    wanted = found->second.memory;
    wanted_.erase(found);
  }
  if (descriptor) {
    wanted->set_value(std::move(descriptor));
  } else {
    wanted->set_error(Error(Code::kOverloaded, "no descriptor left for a group's shared memory")
                          .advice("raise the limit of open files (ulimit -n)"));
  }
}

// Who lets go of it must not have the lock.
std::shared_ptr<Team> Node::team_of_locked(uint64_t id) const {
  for (const Member& member : members_) {
    if (member.id == id) return member.team.lock();
  }
  return nullptr;
}

bool Node::is_first_failure(uint64_t id, const Failure& failure) noexcept {
  MutexLock lock(mutex_);
  if (forgotten_.contains(id)) return false;
  const auto [known, is_new] = failures_.emplace(id, failure);
  if (is_new || known->second.since <= failure.since) return is_new;
  known->second = failure;
  return true;
}

void Node::end_failed(uint64_t id, const Failure& failure) noexcept {
  std::shared_ptr<Team> team;
  std::optional<Promise<net::OwnedDescriptor>> wanted;
  {
    MutexLock lock(mutex_);
    team = team_of_locked(id);
    const auto found = wanted_.find(id);
    if (found != wanted_.end() && failure.since <= found->second.call) {
      wanted = found->second.memory;
      wanted_.erase(found);
    }
  }
  if (wanted) wanted->set_error(failure.why);
  post_->fail(id, failure.why);
  if (fails_now(team.get(), failure)) post_->fail(channel_of(id), failure.why);
}

// Ends the calls that end with it. False where this rank is still in an earlier one, or has not
// come to any: then it fails when it comes to that one.
bool Node::fails_now(Team* team, const Failure& failure) noexcept {
  if (!team) return false;
  team->fail(failure.why, failure.since);
  return failure.since <= team->call();
}

void Node::note_failure(uint64_t id, const Failure& failure) noexcept {
  if (is_first_failure(id, failure)) end_failed(id, failure);
}

// In the thread that reads: what ends by it, which may do anything, ends in another.
void Node::note_failure_soon(uint64_t id, const Failure& failure) noexcept {
  if (!is_first_failure(id, failure)) return;
  std::shared_ptr<Team> team;
  {
    MutexLock lock(mutex_);
    team = team_of_locked(id);
  }
  post_->note_failure(id, failure.why);
  if (fails_now(team.get(), failure)) post_->note_failure(channel_of(id), failure.why);
  reactor_->timers().add(Clock::now(), [weak = weak_from_this(), id, failure] {
    if (const auto self = weak.lock()) self->end_failed(id, failure);
  });
}

// A rank that has left a group of which this one leads, or is led by it.
void Node::note_left(uint64_t id, int rank) noexcept {
  std::shared_ptr<Team> team;
  std::optional<Promise<net::OwnedDescriptor>> wanted;
  size_t place = 0;
  {
    MutexLock lock(mutex_);
    if (forgotten_.contains(id)) return;
    left_[id].insert(rank);
    for (const Member& member : members_) {
      const auto found = std::find(member.ranks.begin(), member.ranks.end(), rank);
      if (member.id != id || found == member.ranks.end()) continue;
      team = member.team.lock();
      place = static_cast<size_t>(found - member.ranks.begin());
    }
    const auto found = wanted_.find(id);
    if (found != wanted_.end() && found->second.leader == rank) {
      wanted = found->second.memory;
      wanted_.erase(found);
    }
  }
  if (wanted) wanted->set_error(left_error(name_of(rank)));
  if (team) team->lose(static_cast<int>(place), Absence::kLeft);
}

// In a reactor's thread, since the line may have to be made first.
void Node::send_soon(int rank, const HostMessage& message) noexcept {
  if (rank == rank_) return;
  reactor_->timers().add(Clock::now(), [weak = weak_from_this(), rank, message] {
    const auto self = weak.lock();
    if (!self) return;
    try {
      self->line_to(rank, Deadline::after(kTellingTime))->send(message);
    } catch (const Error& error) {
      log(LogLevel::kDebug, "c10d/backends/cpu", error.what());  // it is gone, and needs no word
    }
  });
}

// Before this rank takes anything back, so that others know why.
void Node::tell_failure(uint64_t id, const std::vector<int>& ranks,
                        const Failure& failure) noexcept {
  const bool is_first = is_first_failure(id, failure);
  for (const int rank : ranks) {
    if (rank != rank_) post_->tell_failure(id, rank, failure, is_first);
  }
  if (is_first) end_failed(id, failure);
}

void Node::tell_left(uint64_t id, int leader) noexcept {
  HostMessage message;
  message.kind = HostMessage::kLeft;
  message.id = id;
  message.rank = rank_;
  send_soon(leader, message);
}

void Node::forget(uint64_t id) noexcept {
  std::vector<std::shared_ptr<net::Source>> asked;
  std::optional<Promise<net::OwnedDescriptor>> wanted;
  {
    MutexLock lock(mutex_);
    forgotten_.insert(id);
    offers_.erase(id);
    const auto found = wanted_.find(id);
    if (found != wanted_.end()) {
      wanted = found->second.memory;
      wanted_.erase(found);
    }
    failures_.erase(id);
    left_.erase(id);
    std::erase_if(members_, [id](const Member& member) { return member.id == id; });
    const auto [begin, end] = asked_.equal_range(id);
    for (auto one = begin; one != end; ++one) asked.push_back(one->second.lock());
    asked_.erase(begin, end);
  }
  if (wanted) wanted->set_error(left_error());
  HostMessage message;
  message.kind = HostMessage::kLeft;
  message.id = id;
  message.rank = rank_;
  for (const auto& line : asked) {
    if (line) static_cast<HostLine&>(*line).send(message);
  }
}

void Node::on_end(HostLine& line) {
  const int rank = line.peer();
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    std::erase_if(visitors_, [&](const auto& one) { return one.get() == &line; });
    const auto found = lines_.find(rank);
    if (found != lines_.end() && found->second.get() == &line) lines_.erase(found);
  }
  if (rank >= 0) post_->suspect(rank);
}

// Of one that is gone.
Absence Node::absence_of(uint64_t id, int rank) const noexcept {
  return post_->has_left(id, rank) ? Absence::kLeft : Absence::kGone;
}

void Node::note_gone(int rank) noexcept {
  struct Lost {
    uint64_t id;
    std::shared_ptr<Team> team;
    int place;
  };
  std::vector<Lost> teams;
  std::vector<Promise<net::OwnedDescriptor>> wanted;
  {
    MutexLock lock(mutex_);
    gone_.insert(rank);
    std::erase_if(members_, [](const Member& member) { return member.team.expired(); });
    for (const Member& member : members_) {
      const auto found = std::find(member.ranks.begin(), member.ranks.end(), rank);
      if (found == member.ranks.end()) continue;
      if (auto team = member.team.lock()) {
        teams.push_back(
            {member.id, std::move(team), static_cast<int>(found - member.ranks.begin())});
      }
    }
    for (const auto& [id, one] : wanted_) {
      if (one.leader == rank) wanted.push_back(one.memory);
    }
  }
  for (const auto& promise : wanted) promise.set_error(gone_error(name_of(rank)));
  for (const auto& [id, team, place] : teams) team->lose(place, absence_of(id, rank));
  post_->lose(rank);
}

void Node::enlist(uint64_t id, const std::shared_ptr<Team>& team, const std::vector<int>& ranks) {
  MutexLock lock(mutex_);
  members_.push_back({id, team, ranks});
  const auto failed = failures_.find(id);
  if (failed != failures_.end()) team->fail(failed->second.why, failed->second.since);
  const auto left = left_.find(id);
  for (size_t place = 0; place < ranks.size(); ++place) {
    const auto seat = static_cast<int>(place);
    if (gone_.contains(ranks[place])) team->lose(seat, absence_of(id, ranks[place]));
    if (left != left_.end() && left->second.contains(ranks[place])) {
      team->lose(seat, Absence::kLeft);
    }
  }
}

net::SharedMemory Node::lead(uint64_t id, int ranks) {
  net::SharedMemory memory = net::SharedMemory::create(Segment::bytes_for(ranks));
  MutexLock lock(mutex_);
  if (forgotten_.contains(id)) throw left_error();
  Offer offer{net::OwnedDescriptor(net::duplicate(memory.descriptor())), ranks - 1};
  HostMessage give;
  give.kind = HostMessage::kGive;
  give.id = id;
  give.rank = rank_;
  const auto [begin, end] = asked_.equal_range(id);
  for (auto one = begin; one != end; ++one) {
    const auto line = std::static_pointer_cast<HostLine>(one->second.lock());
    if (line && line->send(give, offer.memory.get())) {
      --offer.left;
    } else if (line) {
      line->close();  // so that the other end is told
    }
  }
  asked_.erase(begin, end);
  if (offer.left > 0) offers_[id] = std::move(offer);
  return memory;
}

net::SharedMemory Node::follow(uint64_t id, int leader, int ranks, const Call& call) {
  const uint64_t sequence = call.signature.sequence;
  const TimePoint begun = Clock::now();
  const Promise<net::OwnedDescriptor> promise;
  auto future = promise.future();
  {
    MutexLock lock(mutex_);
    if (forgotten_.contains(id)) throw left_error();
    const auto failed = failures_.find(id);
    if (failed != failures_.end() && failed->second.since <= sequence) throw failed->second.why;
    if (left_[id].contains(leader)) throw left_error(name_of(leader));
    wanted_.insert_or_assign(id, Wanted{leader, sequence, promise});
  }
  HostMessage ask;
  ask.kind = HostMessage::kAsk;
  ask.id = id;
  try {
    const auto line = line_to(leader, call.deadline);
    if (!line->send(ask)) throw gone_error(name_of(leader));
    net::Source* const hint = line->is_open() ? line.get() : nullptr;
    if (!reactor_->wait(*future.state(), call.deadline, hint)) {
      throw late_error(name_of(rank_), begun, name_of(leader), false);
    }
    return net::SharedMemory::open(std::move(future).wait(), Segment::bytes_for(ranks));
  } catch (Error& error) {
    MutexLock lock(mutex_);
    wanted_.erase(id);
    throw error.worker(name_of(leader));
  }
}

std::shared_ptr<Team> Node::make_team(uint64_t id, const std::vector<int>& ranks,
                                      const Call& call) {
  const auto size = static_cast<int>(ranks.size());
  const auto self = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  auto memory = self == 0 ? lead(id, size) : follow(id, ranks.front(), size, call);
  Team::World world;
  world.ranks = ranks;
  for (const int rank : ranks) world.names.push_back(name_of(rank));
  world.on_long_wait = [weak = weak_from_this(), ranks](int place) {
    if (const auto node = weak.lock()) node->watch(ranks[static_cast<size_t>(place)]);
  };
  world.find_late = [weak = weak_from_this(), id](WaitsFor whom) {
    const auto node = weak.lock();
    return node ? node->find_late(id, whom) : Late{"a rank", whom.has_called};
  };
  auto team = std::make_shared<Team>(std::make_shared<Segment>(std::move(memory), size),
                                     tuning().small, static_cast<int>(self), std::move(world));
  enlist(id, team, ranks);
  return team;
}

void Node::stop() noexcept {
  std::vector<std::shared_ptr<HostLine>> lines;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    lines.swap(visitors_);
    for (const auto& [rank, line] : lines_) lines.push_back(line);
    lines_.clear();
  }
  listening_.reset();
  departures_.stop();
  post_->stop(kSendingTime);
  for (const auto& line : lines) line->close();
  loop_->close();
  reactor_->stop();
}

}  // namespace farspan::dist::cpu
