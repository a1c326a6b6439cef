// How two agents come to share one connection. Either side may dial; when both do at once, the line
// that the lower rank dialled is the one that stays: the lower rank refuses the other's hello with
// kAlreadyExists. So does a side whose line is open; a dialler that has lost that line tries again
// until the other side has noticed, too.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/host.h>
#include <farspan/rpc/agent/agent.h>

namespace farspan::agent {
namespace {

constexpr std::chrono::milliseconds kRedialAfter{20};
constexpr std::chrono::seconds kToShareAtMost{10};  // by the transports that are tried in turn

}  // namespace

wire::Hello Agent::hello() const {
  wire::Hello hello;
  hello.min_version = hello.max_version = wire::kVersion;
  hello.name = options_.self.name;
  hello.rank = options_.self.rank;
  hello.instance = instance_;
  hello.generation = options_.generation;
  hello.pid = getpid();
  hello.host = net::host_name();
  hello.functions = options_.functions;
  if (options_.connection.cross_memory_attach != CrossMemoryAttach::kForbidden) {
    hello.features |= wire::kReadsOffers | wire::kMapsBlocks;
  }
  if (options_.connection.lanes > 0) hello.features |= wire::kHasLanes;
  hello.probe = reinterpret_cast<uintptr_t>(&instance_);
  return hello;
}

std::unique_ptr<wire::FrameReader> Agent::new_reader() const {
  return std::make_unique<wire::FrameReader>(
      kGreetingLimits, options_.frame_limits,
      [pool = pool_](size_t bytes) { return pool->allocate(bytes); });
}

std::shared_ptr<Connection> Agent::new_line(const WorkerInfo& peer) {
  ConnectionOwner& owner = *this;
  ConnectionOptions options = options_.connection;
  options.received = pool_;
  options.shared_blocks = shared_blocks_;
  options.mapped_bytes = mapped_bytes_;
  return std::make_shared<Connection>(reactor_, owner, peer, std::move(options));
}

std::shared_ptr<Connection> Agent::line_to(int rank) {
  std::shared_ptr<Connection> line;
  bool reserved = false;
  {
    MutexLock lock(mutex_);
    if (stopped_) throw Error(Code::kShutdown, "this worker has been shut down");
    if (rank < 0 || static_cast<size_t>(rank) >= peers_.size()) {
      throw Error(Code::kInvalidArgument, "there is no worker of rank " + std::to_string(rank))
          .advice("ranks go from 0 to " + std::to_string(peers_.size()) + " - 1");
    }
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.line && !peer.line->is_closed()) return peer.line;
    if (peer.line) peer.untold.push_back(peer.line);
    line = new_line(peer.record.info);
    peer.line = line;
    reserved = peer.reserved > 0 || !peer.untold.empty();
    peer.dialing = !reserved;
  }
  if (!reserved) dial(rank, line);
  return line;
}

// One attempt to open a line, over the transports of this worker that reach the other one, in order
// of preference. What fails is followed by the next at once; what says nothing when its share of
// the time is over, too, but it may still be the first to answer.
struct Agent::Dial {
  enum class State { kUntried, kUnderWay, kSilent, kFailed };  // kSilent: under way, too
  struct Way {
    size_t transport;
    std::string endpoint;
    State state = State::kUntried;
  };
  struct Refusal {
    std::string why;
    bool in_vain = true;  // it was tried, and might have worked
  };
  Dial(int to, std::shared_ptr<Connection> opens, Deadline until, Error unreachable)
      : rank(to), line(std::move(opens)), deadline(until), last(std::move(unreachable)) {}

  const int rank;
  const std::shared_ptr<Connection> line;
  const Deadline deadline;

  Mutex mutex;
  std::vector<Way> ways FARSPAN_GUARDED_BY(mutex);
  std::map<size_t, Refusal> refused FARSPAN_GUARDED_BY(mutex);  // by transport
  Error last FARSPAN_GUARDED_BY(mutex);                         // why the latest one has failed
};

void Agent::dial(int rank, std::shared_ptr<Connection> line) {
  const Deadline deadline = Deadline::in(options_.connect_timeout);
  reactor_.timers().add(
      deadline.at(), [weak = std::weak_ptr<Connection>(line), timeout = options_.connect_timeout] {
        const auto live = weak.lock();
        if (!live || live->is_open() || live->is_closed()) return;
        live->close(Error(Code::kTimeout, "could not connect in time")
                        .elapsed(timeout)
                        .advice("is the worker running, and can it be reached from this host?"));
      });
  dial_until(deadline, rank, line);
}

void Agent::dial_until(Deadline deadline, int rank, const std::shared_ptr<Connection>& line) {
  std::vector<std::string> endpoints;
  UnsteadyWays unsteady;
  {
    MutexLock lock(mutex_);
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    endpoints = peer.record.endpoints;
    unsteady = peer.unsteady;
  }
  const auto dial = std::make_shared<Dial>(
      rank, line, deadline,
      Error(Code::kUnavailable, "no transport of this worker reaches it")
          .advice("allow one that does in WorkerOptions::transports: unix within a host, "
                  "tcp between hosts"));
  const bool to_itself = rank == options_.self.rank;
  const bool may_avoid = options_.connection.cross_memory_attach != CrossMemoryAttach::kRequired;
  std::vector<Dial::Way> steady, avoided;
  std::map<size_t, Dial::Refusal> refused;
  for (size_t i = 0; i < transports_.size(); ++i) {
    const transport::Transport& transport = *transports_[i];
    if (to_itself && transport.name() != "loopback") continue;
    const auto endpoint = std::find_if(endpoints.begin(), endpoints.end(),
                                       [&](const auto& e) { return transport.reaches(e); });
    if (endpoint == endpoints.end()) {
      refused[i] = {"another host, or not allowed there", /*in_vain=*/false};
    } else if (may_avoid && unsteady.is_unsteady(transport.name(), Clock::now())) {
      refused[i] = {"lines broke again and again", /*in_vain=*/true};
      avoided.push_back({i, *endpoint});
    } else {
      steady.push_back({i, *endpoint});
    }
  }
  {
    MutexLock lock(dial->mutex);
    dial->ways = std::move(steady);
    dial->ways.insert(dial->ways.end(), avoided.begin(), avoided.end());
    dial->refused = std::move(refused);
  }
  try_next_way(dial);
}

// Where none is under way that may be expected to answer.
void Agent::try_next_way(const std::shared_ptr<Dial>& dial) {
  using State = Dial::State;
  if (dial->line->is_open() || dial->line->is_closed() || stopping_) return;
  size_t way = 0, left = 0;
  Dial::Way next{};
  std::optional<Error> why;
  {
    MutexLock lock(dial->mutex);
    const auto is = [](State state) {
      return [state](const Dial::Way& one) { return one.state == state; };
    };
    if (std::ranges::any_of(dial->ways, is(State::kUnderWay))) return;
    const auto found = std::ranges::find_if(dial->ways, is(State::kUntried));
    if (found != dial->ways.end()) {
      found->state = State::kUnderWay;
      next = *found;
      way = static_cast<size_t>(found - dial->ways.begin());
      left = dial->ways.size() - way;
    } else if (std::ranges::all_of(dial->ways, is(State::kFailed))) {
      why = dial->last;
    }
  }
  if (why) return give_up_dialling(dial->rank, dial->line, *why);
  if (left == 0) return;  // those that were silent may still answer
  if (left > 1) leave_when_silent(dial, way, left);
  transports_[next.transport]->connect(next.endpoint, dial->deadline,
                                       [this, dial, way](auto result) {
                                         if (auto* error = std::get_if<Error>(&result))
                                           return leave_way(dial, way, *error);
                                         greet(dial, way, std::move(std::get<0>(result)));
                                       });
}

//   left  so many ways share the time that is left
void Agent::leave_when_silent(const std::shared_ptr<Dial>& dial, size_t way, size_t left) {
  const auto share = std::min<Clock::duration>(dial->deadline.remaining(), kToShareAtMost) /
                     static_cast<int64_t>(left);
  reactor_.timers().add(Clock::now() + share, [this, way, share, weak = std::weak_ptr(dial)] {
    const auto live = weak.lock();
    if (!live) return;
    {
      MutexLock lock(live->mutex);
      Dial::Way& silent = live->ways[way];
      if (silent.state != Dial::State::kUnderWay) return;
      silent.state = Dial::State::kSilent;
      live->refused[silent.transport] = {
          "silent for " + std::to_string(std::chrono::duration_cast<Millis>(share).count()) +
          " ms"};
    }
    try_next_way(live);
  });
}

void Agent::leave_way(const std::shared_ptr<Dial>& dial, size_t way, const Error& why) {
  {
    MutexLock lock(dial->mutex);
    dial->ways[way].state = Dial::State::kFailed;
    dial->refused[dial->ways[way].transport] = {why.message()};
    dial->last = why;
  }
  try_next_way(dial);
}

// The other side's line may have become this one, or be about to: then a dial that fails is
// nothing.
void Agent::give_up_dialling(int rank, const std::shared_ptr<Connection>& line, const Error& why) {
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.line == line && peer.reserved > 0) {
      peer.dialing = false;  // adopt() dials again if nothing comes of it
      return;
    }
    if (line->is_open()) return;
  }
  line->close(why);
}

void Agent::greet(const std::shared_ptr<Dial>& dial, size_t way,
                  std::unique_ptr<transport::Stream> stream) {
  const auto& line = dial->line;
  if (line->is_closed() || line->is_open() || stopping_) return;
  auto on_end = [this, dial, way](Greeting::Outcome outcome) {
    if (!outcome.failure) {
      dial->line->open(std::move(outcome), against_better_ways(*dial, way));
      if (!dial->line->is_open()) return;  // another way is about to open it, or it was closed
      {
        MutexLock lock(mutex_);
        Peer& peer = peers_[static_cast<size_t>(dial->rank)];
        if (peer.line == dial->line) peer.dialing = false;  // not before the line is open: admit()
      }
      tell_reached(dial->rank);
    } else if (outcome.failure->code() == Code::kAlreadyExists) {
      dial_again(dial);
    } else if (outcome.failure->code() == Code::kInvalidArgument) {
      give_up_dialling(dial->rank, dial->line, *outcome.failure);
    } else {
      leave_way(dial, way, *outcome.failure);
    }
  };
  wire::Hello mine = hello();
  mine.line = line->number();
  shake_hands(std::move(stream),
              Handshake::opener(std::move(mine), line->peer(), instance_of(dial->rank)),
              std::move(on_end));
}

RefusedWays Agent::against_better_ways(Dial& dial, size_t way) const {
  RefusedWays ways;
  MutexLock lock(dial.mutex);
  for (const auto& [transport, refusal] : dial.refused) {
    if (transport >= dial.ways[way].transport) break;
    ways.reasons.push_back(std::string(transports_[transport]->name()) + ": " + refusal.why);
    if (refusal.in_vain) ways.in_vain.push_back(ways.reasons.back());
  }
  return ways;
}

void Agent::shake_hands(std::unique_ptr<transport::Stream> stream, Handshake handshake,
                        Greeting::OnEnd on_end) {
  auto greeting = std::make_shared<Greeting>(reactor_, std::move(stream), new_reader(),
                                             std::move(handshake), std::move(on_end));
  {
    MutexLock lock(mutex_);
    std::erase_if(greetings_, [](const auto& ended) { return ended.expired(); });
    greetings_.push_back(greeting);
  }
  greeting->start(Deadline::in(options_.connect_timeout));
}

namespace {

void log_missing_lane(const Connection& line, const Error& why) {
  log(LogLevel::kInfo, "agent", "no lane to worker '" + line.peer().name + "': " + why.what());
}

}  // namespace

// Lanes that cannot be had are done without.
void Agent::on_lanes_wanted(const std::shared_ptr<Connection>& line) {
  const auto rank = static_cast<size_t>(line->peer().rank);
  std::vector<std::string> endpoints;
  {
    MutexLock lock(mutex_);
    if (rank < peers_.size()) endpoints = peers_[rank].record.endpoints;
  }
  for (const auto& transport : transports_) {
    if (transport->name() != "tcp") continue;
    const auto endpoint = std::find_if(endpoints.begin(), endpoints.end(),
                                       [&](const auto& e) { return transport->reaches(e); });
    if (endpoint == endpoints.end()) continue;
    // Goes with the last of them.
    const std::shared_ptr<void> dials(nullptr, [line](void*) { line->lanes_were_dialled(); });
    for (int i = 0; i < options_.connection.lanes; ++i) {
      transport->connect(*endpoint, Deadline::in(options_.connect_timeout),
                         [this, line, dials](auto result) {
                           if (const Error* why = std::get_if<1>(&result)) {
                             return log_missing_lane(*line, *why);
                           }
                           greet_lane(line, dials, std::move(std::get<0>(result)));
                         });
    }
  }
}

void Agent::greet_lane(const std::shared_ptr<Connection>& line, std::shared_ptr<void> dials,
                       std::unique_ptr<transport::Stream> stream) {
  if (!line->takes_lanes() || stopping_) return;
  wire::Hello mine = hello();
  mine.lane_of = line->number();
  shake_hands(std::move(stream),
              Handshake::opener(std::move(mine), line->peer(), instance_of(line->peer().rank)),
              [line, dials = std::move(dials)](Greeting::Outcome outcome) {
                if (outcome.failure) return log_missing_lane(*line, *outcome.failure);
                line->add_lane(std::move(outcome));
              });
}

// The other side has, or is about to open, a line of its own; unless it has just lost it. The dial
// that was turned down never gives up the line: this one does.
void Agent::dial_again(const std::shared_ptr<Dial>& dial) {
  reactor_.timers().add(Clock::now() + kRedialAfter,
                        [this, rank = dial->rank, deadline = dial->deadline,
                         weak = std::weak_ptr<Connection>(dial->line)] {
                          const auto live = weak.lock();
                          if (!live || live->is_open() || live->is_closed() || stopping_) return;
                          dial_until(deadline, rank, live);
                        });
}

void Agent::accept(std::unique_ptr<transport::Stream> stream) {
  if (stopping_) return;
  auto welcome = std::make_shared<Welcome>();
  auto handshake = Handshake::accepter(
      hello(), [this, welcome](const wire::Hello& peer) { return admit(peer, *welcome); });
  shake_hands(std::move(stream), std::move(handshake), [this, welcome](Greeting::Outcome outcome) {
    if (!welcome->lane_of) return adopt(std::move(outcome), welcome->rank);
    if (!outcome.failure) welcome->lane_of->add_lane(std::move(outcome));
  });
}

std::optional<Error> Agent::admit(const wire::Hello& hello, Welcome& welcome) {
  MutexLock lock(mutex_);
  if (stopped_) return Error(Code::kShutdown, "this worker has been shut down");
  if (hello.rank < 0 || static_cast<size_t>(hello.rank) >= peers_.size()) {
    return Error(Code::kUnavailable,
                 "this worker does not know rank " + std::to_string(hello.rank) + " (yet)");
  }
  Peer& peer = peers_[static_cast<size_t>(hello.rank)];
  if (auto objection = objection_to_identity(hello, peer.record.info, peer.record.instance)) {
    return objection;
  }
  if (hello.lane_of != 0) {
    if (!peer.line || peer.line->number() != hello.lane_of || !peer.line->takes_lanes()) {
      return Error(Code::kUnavailable, "there is no line that takes this lane");
    }
    welcome.lane_of = peer.line;
    return std::nullopt;
  }
  const bool to_itself = hello.rank == options_.self.rank;
  const bool dials_first = peer.dialing && options_.self.rank < hello.rank;
  // The next one waits until all have been told that the last one has ended.
  const bool is_untold = !peer.untold.empty() || (peer.line && peer.line->is_closed());
  const bool is_soon = dials_first || peer.reserved > 0 || is_untold;
  if (!to_itself && (is_soon || (peer.line && peer.line->is_open()))) {
    return Error(Code::kAlreadyExists, "there is a line already, or is about to be");
  }
  ++peer.reserved;
  welcome.rank = hello.rank;
  return std::nullopt;
}

// `welcomed`: the rank that admit() let in; -1: none.
void Agent::adopt(Greeting::Outcome outcome, int welcomed) {
  if (welcomed < 0) {
    if (!stopping_ && outcome.failure->code() != Code::kAlreadyExists) {
      log(LogLevel::kInfo, "agent",
          std::string("turned a connection away: ") + outcome.failure->what());
    }
    return;
  }
  const auto index = static_cast<size_t>(welcomed);
  std::shared_ptr<Connection> line;
  bool to_be_dialled = false;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[index];
    const bool to_itself = welcomed == options_.self.rank;
    auto& place = to_itself ? peer.incoming : peer.line;
    if (outcome.failure || stopped_) {
      --peer.reserved;
      if (stopped_) return;
      // A call waits for this line; open_next() dials that which waits for others to be told.
      to_be_dialled = place && !to_itself && !peer.dialing && peer.untold.empty();
      peer.dialing = peer.dialing || to_be_dialled;
    } else if (!place) {
      place = new_line(peer.record.info);
    }
    line = place;
  }
  if (to_be_dialled) return dial(welcomed, line);
  if (outcome.failure) return;
  line->open(std::move(outcome));
  finish_adoption(welcomed, line);
  if (line->is_open()) tell_reached(welcomed);
}

// Not before the line is open: admit().
void Agent::finish_adoption(int rank, const std::shared_ptr<Connection>& line) {
  std::shared_ptr<Connection> next;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[static_cast<size_t>(rank)];
    --peer.reserved;
    if (rank == options_.self.rank) return;
    if (peer.line == line) {
      peer.dialing = false;
    } else if (peer.line && !peer.dialing && peer.reserved == 0 && peer.untold.empty() &&
               !stopped_) {
      // The line was lost at once, and a new one was made that counted on this handshake.
      next = peer.line;
      peer.dialing = true;
    }
  }
  if (next) dial(rank, next);
}

}  // namespace farspan::agent
