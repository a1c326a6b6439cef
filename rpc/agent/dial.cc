// How two agents come to share one connection. Either side may dial; when both do at once, the line
// that the lower rank dialled is the one that stays.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/rpc/agent/agent.h>

namespace farspan::agent {
namespace {

std::string host_name() {
  char text[256] = "";
  gethostname(text, sizeof text - 1);
  return text;
}

}  // namespace

wire::Hello Agent::hello() const {
  wire::Hello hello;
  hello.min_version = hello.max_version = wire::kVersion;
  hello.name = options_.self.name;
  hello.rank = options_.self.rank;
  hello.instance = instance_;
  hello.generation = options_.generation;
  hello.pid = getpid();
  hello.host = host_name();
  hello.functions = options_.functions;
  return hello;
}

std::unique_ptr<wire::FrameReader> Agent::new_reader() const {
  return std::make_unique<wire::FrameReader>(
      options_.frame_limits, [pool = pool_](size_t bytes) { return pool->allocate(bytes); });
}

std::shared_ptr<Connection> Agent::new_line(const WorkerInfo& peer) {
  ConnectionOwner& owner = *this;
  return std::make_shared<Connection>(reactor_, owner, peer, options_.connection_limits);
}

std::shared_ptr<Connection> Agent::line_to(int rank) {
  std::shared_ptr<Connection> line;
  {
    MutexLock lock(mutex_);
    if (stopped_) throw Error(Code::kShutdown, "this worker has been shut down");
    if (rank < 0 || static_cast<size_t>(rank) >= peers_.size()) {
      throw Error(Code::kInvalidArgument, "there is no worker of rank " + std::to_string(rank))
          .advice("ranks go from 0 to " + std::to_string(peers_.size()) + " - 1");
    }
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.line) return peer.line;
    line = new_line(peer.record.info);
    peer.line = line;
    peer.dialing = true;
  }
  dial(rank, line);
  return line;
}

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
  try_endpoints(rank, line, 0,
                Error(Code::kUnavailable, "no transport of this worker reaches it")
                    .advice("allow one that does in WorkerOptions::transports: unix within a host, "
                            "tcp between hosts"));
}

// Tries this worker's transports in order of preference, from number `next` on.
void Agent::try_endpoints(int rank, const std::shared_ptr<Connection>& line, size_t next,
                          Error last) {
  std::vector<std::string> endpoints;
  {
    MutexLock lock(mutex_);
    endpoints = peers_[static_cast<size_t>(rank)].record.endpoints;
  }
  const bool to_itself = rank == options_.self.rank;
  for (; next < transports_.size(); ++next) {
    transport::Transport& transport = *transports_[next];
    if (to_itself && transport.name() != "loopback") continue;
    const auto endpoint = std::find_if(endpoints.begin(), endpoints.end(),
                                       [&](const auto& e) { return transport.reaches(e); });
    if (endpoint == endpoints.end()) continue;
    transport.connect(*endpoint, Deadline::in(options_.connect_timeout),
                      [this, rank, line, next](auto result) {
                        if (auto* error = std::get_if<Error>(&result)) {
                          return try_endpoints(rank, line, next + 1, *error);
                        }
                        greet(rank, line, next, std::move(std::get<0>(result)));
                      });
    return;
  }
  line->close(last);
}

void Agent::greet(int rank, const std::shared_ptr<Connection>& line, size_t next,
                  std::unique_ptr<transport::Stream> stream) {
  if (line->is_closed() || stopping_) return;
  auto on_end = [this, rank, line, next](Greeting::Outcome outcome) {
    if (!outcome.failure) {
      {
        MutexLock lock(mutex_);
        peers_[static_cast<size_t>(rank)].dialing = false;
      }
      line->open(std::move(outcome.stream), std::move(outcome.reader), std::move(outcome.frames),
                 std::move(outcome.peer->functions));
    } else if (outcome.failure->code() != Code::kAlreadyExists) {
      const Error& failure = *outcome.failure;
      const bool refused = failure.code() == Code::kInvalidArgument;
      refused ? line->close(failure) : try_endpoints(rank, line, next + 1, failure);
    }  // else: both dialled, and the other one's line will open this connection
  };
  auto greeting = std::make_shared<Greeting>(reactor_, std::move(stream), new_reader(),
                                             Handshake::opener(hello(), rank), std::move(on_end));
  {
    MutexLock lock(mutex_);
    std::erase_if(greetings_, [](const auto& ended) { return ended.expired(); });
    greetings_.push_back(greeting);
  }
  greeting->start(Deadline::in(options_.connect_timeout));
}

void Agent::accept(std::unique_ptr<transport::Stream> stream) {
  if (stopping_) return;
  auto handshake =
      Handshake::accepter(hello(), [this](const wire::Hello& peer) { return admit(peer); });
  auto greeting =
      std::make_shared<Greeting>(reactor_, std::move(stream), new_reader(), std::move(handshake),
                                 [this](Greeting::Outcome outcome) { adopt(std::move(outcome)); });
  {
    MutexLock lock(mutex_);
    std::erase_if(greetings_, [](const auto& ended) { return ended.expired(); });
    greetings_.push_back(greeting);
  }
  greeting->start(Deadline::in(options_.connect_timeout));
}

std::optional<Error> Agent::admit(const wire::Hello& peer) {
  MutexLock lock(mutex_);
  if (stopped_) return Error(Code::kShutdown, "this worker has been shut down");
  if (peer.rank < 0 || static_cast<size_t>(peer.rank) >= peers_.size()) {
    return Error(Code::kUnavailable,
                 "this worker does not know rank " + std::to_string(peer.rank) + " (yet)");
  }
  const Peer& known = peers_[static_cast<size_t>(peer.rank)];
  if (!(known.record.instance == peer.instance)) {
    return Error(Code::kInvalidArgument,
                 "worker '" + peer.name + "' was restarted; this job knows its earlier run")
        .advice("restart the whole job");
  }
  if (peer.rank != options_.self.rank && known.dialing && options_.self.rank < peer.rank) {
    return Error(Code::kAlreadyExists, "this worker is dialling, too, and its line is to be used");
  }
  return std::nullopt;
}

void Agent::adopt(Greeting::Outcome outcome) {
  if (outcome.failure) {
    if (!stopping_ && outcome.failure->code() != Code::kAlreadyExists) {
      log(LogLevel::kInfo, "agent",
          std::string("turned a connection away: ") + outcome.failure->what());
    }
    return;
  }
  std::shared_ptr<Connection> line, replaced;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    Peer& peer = peers_[static_cast<size_t>(outcome.peer->rank)];
    auto& place = outcome.peer->rank == options_.self.rank ? peer.incoming : peer.line;
    if (place && place->is_open()) replaced = std::move(place);  // the peer has lost that one
    if (!place) {
      place = new_line(peer.record.info);
    }
    peer.dialing = peer.dialing && outcome.peer->rank == options_.self.rank;
    line = place;
  }
  if (replaced) replaced->close(Error(Code::kDisconnected, "the peer connected anew"));
  line->open(std::move(outcome.stream), std::move(outcome.reader), std::move(outcome.frames),
             std::move(outcome.peer->functions));
}

}  // namespace farspan::agent
