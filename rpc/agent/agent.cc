#include <farspan/rpc/agent/agent.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <iterator>
#include <new>
#include <sstream>
#include <thread>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/transport/loopback/loopback_transport.h>
#include <farspan/c10d/transport/shm/shm_transport.h>
#include <farspan/c10d/transport/tcp/tcp_transport.h>
#include <farspan/c10d/transport/unix/unix_transport.h>
#include <farspan/rpc/agent/serving_wait.h>

namespace farspan::agent {
namespace {

// How long stop() lets what was sent leave, replies to the very last calls above all.
constexpr std::chrono::seconds kFarewell{2};

// A call is made on so many lines at most, each of which breaks before it is sent.
constexpr int kMostLines = 3;
// Why better ways were tried in vain, of one peer: so many are remembered.
constexpr size_t kMostReasons = 32;

// What is run for others must not end the process: an exception ends that work only.
template <class Fn>
void contain(const char* what, Fn&& fn) noexcept {
  try {
    fn();
  } catch (const std::exception& e) {
    log(LogLevel::kError, "agent", std::string(what) + " threw: " + e.what());
  } catch (...) {
    log(LogLevel::kError, "agent", std::string(what) + " threw");
  }
}

Error too_late() {
  return Error(Code::kTimeout, "its deadline passed before it could be run")
      .advice("the worker is busy: call less at once, or raise the timeout");
}

// A request on its way to its handler.
class RequestTask final : public net::Task {
 public:
  RequestTask(const Messenger::Handler& handler, Request request)
      : handler_(handler), request_(std::move(request)) {
    chain = request_.frame().header.chain;
    patient = request_.one_way();
  }

  void run() noexcept override {
    if (request_.deadline().expired()) {
      request_.fail(too_late());
      return;
    }
    CallContext& context = current_call();
    const CallContext outer =
        std::exchange(context, {request_.deadline(), chain, request_.from(), request_.route()});
    contain("a handler", [&] { handler_(std::move(request_)); });
    context = outer;
  }

  void reject(const Error& why) noexcept override { request_.fail(why); }

 private:
  const Messenger::Handler& handler_;
  Request request_;
};

// What is left of a call that its handler could not end at once.
class ResumedTask final : public net::Task {
 public:
  ResumedTask(CallContext call, std::function<void()> work, Messenger::Rejected rejected)
      : call_(std::move(call)), work_(std::move(work)), rejected_(std::move(rejected)) {
    chain = call_.chain;
  }

  void run() noexcept override {
    if (call_.deadline.expired()) return reject(too_late());
    const CallContext outer = std::exchange(current_call(), call_);
    contain("a call that went on", work_);
    current_call() = outer;
  }

  void reject(const Error& why) noexcept override {
    contain("a call that was turned away", [&] { rejected_(why); });
  }

 private:
  const CallContext call_;
  const std::function<void()> work_;
  const Messenger::Rejected rejected_;
};

class PlainTask final : public net::Task {
 public:
  explicit PlainTask(std::function<void()> work, Messenger::Rejected rejected = nullptr)
      : work_(std::move(work)), rejected_(std::move(rejected)) {
    patient = true;
  }
  void run() noexcept override { contain("a task", work_); }
  void reject(const Error& why) noexcept override {
    if (rejected_) return contain("a task that was turned away", [&] { rejected_(why); });
    log(LogLevel::kDebug, "agent", std::string("dropped work at its end: ") + why.what());
  }

 private:
  const std::function<void()> work_;
  const Messenger::Rejected rejected_;
};

}  // namespace

std::string PeerRecord::to_text() const {
  std::string text = std::to_string(info.rank) + "\n" + info.name + "\n" +
                     std::to_string(instance.high) + "\n" + std::to_string(instance.low) + "\n";
  for (const auto& endpoint : endpoints) text += endpoint + "\n";
  return text;
}

PeerRecord PeerRecord::from_text(const std::string& text) {
  PeerRecord record;
  std::istringstream lines(text);
  std::string line;
  const auto number = [&](auto& value) {
    std::getline(lines, line);
    const auto result = std::from_chars(line.data(), line.data() + line.size(), value);
    if (!lines || result.ec != std::errc() || result.ptr != line.data() + line.size()) {
      throw Error(Code::kCorrupt, "no worker's record: '" + text.substr(0, 80) + "'")
          .operation("read the store")
          .advice("is the store used by something else?");
    }
  };
  number(record.info.rank);
  std::getline(lines, record.info.name);
  number(record.instance.high);
  number(record.instance.low);
  while (std::getline(lines, line)) record.endpoints.push_back(line);
  return record;
}

Agent::Agent(AgentOptions options)
    : options_(std::move(options)),
      instance_(wire::InstanceId::random()),
      pool_(net::MemoryPool::make()),
      shared_blocks_(std::make_shared<net::SharedBlocks>()),
      shared_pool_(net::MemoryPool::make({}, shared_blocks_)),
      mapped_bytes_(std::make_shared<net::MappedBytes>()),
      reactor_(options_.reactor),
      loop_(std::make_shared<net::Loop>(reactor_.timers())) {
  if (wire::encode(hello()).size() > kGreetingLimits.max_meta_bytes) {
    throw Error(Code::kInvalidArgument, "the table of registered functions is too large: " +
                                            std::to_string(options_.functions.size()))
        .operation("init_rpc")
        .advice("register fewer functions, or under shorter names");
  }
  make_transports();
  pool_->shrink_by(&reactor_.timers());
  shared_pool_->shrink_by(&reactor_.timers());
  reactor_.add(loop_);
  for (auto& transport : transports_) {
    listeners_.push_back(transport->listen(
        options_.bind_host,
        [this](std::unique_ptr<transport::Stream> stream) { accept(std::move(stream)); }));
  }
}

Agent::~Agent() { stop(); }

void Agent::make_transports() {
  std::vector<std::string> names = options_.transports;
  if (names.empty()) names = {"shm", "unix", "tcp"};
  for (const std::string& name : names) {
    if (name == "shm") {
      transports_.push_back(transport::make_shm_transport(loop_, reactor_));
    } else if (name == "unix") {
      transports_.push_back(transport::make_unix_transport(loop_, reactor_));
    } else if (name == "tcp") {
      transports_.push_back(transport::make_tcp_transport(loop_, reactor_));
    } else if (name != "loopback") {
      throw Error(Code::kInvalidArgument, "no transport is called '" + name + "'")
          .operation("init_rpc")
          .advice("use shm, unix, tcp or loopback");
    }
  }
  transports_.push_back(transport::make_loopback_transport());  // to itself, at least
}

PeerRecord Agent::record() const {
  PeerRecord record{options_.self, instance_, {}};
  for (const auto& listener : listeners_) record.endpoints.push_back(listener->endpoint());
  // Loopback reaches workers of the same process only; they prefer it when nothing else is allowed.
  return record;
}

void Agent::set_workers(std::vector<PeerRecord> records) {
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.info.rank < b.info.rank; });
  for (size_t i = 0; i < records.size(); ++i) {
    FARSPAN_ASSERT(records[i].info.rank == static_cast<int>(i), "ranks are 0 to n - 1");
    workers_.push_back(records[i].info);
  }
  MutexLock lock(mutex_);
  peers_.resize(records.size());
  for (size_t i = 0; i < records.size(); ++i) peers_[i].record = std::move(records[i]);
}

void Agent::stop() {
  std::vector<std::shared_ptr<Connection>> lines;
  std::vector<std::weak_ptr<Greeting>> greetings;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    if (net::inside_reactor()) {  // which would wait for itself
      throw Error(Code::kInvalidArgument, "a worker cannot be shut down by what it runs")
          .advice(
              "call shutdown() in a thread of your own, not in a function that is called from "
              "other workers or in a continuation");
    }
    stopped_ = true;
    stopping_.store(true);
    for (auto& peer : peers_) {
      if (peer.line) lines.push_back(peer.line);
      if (peer.incoming) lines.push_back(peer.incoming);
    }
    greetings.swap(greetings_);
  }
  listeners_.clear();
  for (const auto& line : lines) {
    wire::OutFrame goodbye;
    goodbye.header.kind = wire::Kind::kGoodbye;
    goodbye.header.flags = wire::kOneWay;
    if (line->is_open()) line->send(goodbye);
  }
  const Deadline deadline = Deadline::after(kFarewell);
  for (const auto& line : lines) line->drain(deadline);
  for (const auto& line : lines) {
    line->close(Error(Code::kShutdown, "this worker has been shut down"));
  }
  for (const auto& greeting : greetings) {
    if (const auto live = greeting.lock()) live->abort();
  }
  loop_->close();
  reactor_.remove(*loop_);
  pool_->close();
  shared_pool_->close();
  reactor_.stop();
}

wire::InstanceId Agent::instance_of(int rank) const {
  MutexLock lock(mutex_);
  return peers_.at(static_cast<size_t>(rank)).record.instance;
}

void Agent::handle(wire::Kind kind, Run run, Handler handler) {
  handlers_[static_cast<uint8_t>(kind)] = {run, std::move(handler)};
}

void Agent::call(int to, wire::OutFrame& frame, Deadline deadline,
                 std::shared_ptr<ReplyHandler> handler, bool will_wait) {
  calls_sent_.fetch_add(1, std::memory_order_relaxed);
  if (frame.header.chain == 0) {
    const uint64_t number = next_chain_.fetch_add(1, std::memory_order_relaxed);
    frame.header.chain = (uint64_t(options_.self.rank + 1) << 48) | number;
  }
  handler->lines_ = 0;
  const auto why = try_to_call(to, frame, deadline, handler, will_wait, /*had_room=*/false);
  if (why) handler->on_error(*why);
}

// By this line or the next. Returns nothing, or why by none: then the handler hears nothing.
std::optional<Error> Agent::try_to_call(int to, wire::OutFrame& frame, Deadline deadline,
                                        const std::shared_ptr<ReplyHandler>& handler,
                                        bool will_wait, bool had_room) {
  while (handler->lines_++ < kMostLines) {
    std::shared_ptr<Connection> line;
    try {
      line = line_to(to);
    } catch (const Error& why) {
      return why;
    }
    const auto refusal = line->call(frame, deadline, handler, will_wait, had_room);
    if (!refusal) return std::nullopt;
    if (!refusal->for_next_line) return refusal->why;
  }
  return Error(Code::kDisconnected, "each of " + std::to_string(kMostLines) +
                                        " lines to it broke before this call could be sent")
      .advice("look at that worker's log, and at the network on the way to it");
}

std::optional<Error> Agent::on_unsent(const std::shared_ptr<Connection>& connection,
                                      UnsentCall& call) {
  try {
    return try_to_call(connection->peer().rank, call.frame, call.deadline, call.handler,
                       /*will_wait=*/false, /*had_room=*/true);
  } catch (const std::bad_alloc&) {
    return Error(Code::kOverloaded, "no memory to send it by the next line");
  }
}

bool Agent::cancel(int to, const ReplyHandler& handler) {
  bool is_cancelled = false;
  for (;;) {
    const uint32_t moves = handler.moves_.load();
    if (!handler.is_between_lines()) {
      for (const auto& line : lines_of(to)) {
        run_here([&] { is_cancelled = line->cancel(handler); });
        if (is_cancelled) return true;
      }
      if (handler.moves_.load() == moves) return false;  // it was on none of them all the time
    }
    std::this_thread::yield();  // it goes by the next line, which takes no longer than to send it
  }
}

// Those that have ended, of which not all have been told, and the one there is now.
std::vector<std::shared_ptr<Connection>> Agent::lines_of(int rank) const {
  MutexLock lock(mutex_);
  const auto at = static_cast<size_t>(rank);
  if (rank < 0 || at >= peers_.size()) return {};
  auto lines = peers_[at].untold;
  if (peers_[at].line) lines.push_back(peers_[at].line);
  return lines;
}

void Agent::post(int to, wire::OutFrame& frame) {
  frame.header.flags |= wire::kOneWay;
  try {
    line_to(to)->send(frame);
  } catch (const Error& e) {
    log(LogLevel::kDebug, "agent", std::string("a message was not sent: ") + e.what());
  }
}

std::shared_ptr<Connection> Agent::known_line(int rank) const {
  MutexLock lock(mutex_);
  const auto at = static_cast<size_t>(rank);
  return rank >= 0 && at < peers_.size() ? peers_[at].line : nullptr;
}

bool Agent::wait(FutureCore& future, Deadline deadline, int from, net::Expected expected) {
  const auto line = known_line(from);
  return line ? line->wait(future, deadline, expected) : reactor_.wait(future, deadline, nullptr);
}

// One that is being dialled is not waited for: the future may be ready without it.
bool Agent::wait_and_serve(FutureCore& future, int from,
                           const std::function<bool(const Request&)>& is_own,
                           net::SpinGovernor& polling, net::Expected expected) {
  const auto line = known_line(from);
  net::Source* const hint = line && line->is_open() ? line.get() : nullptr;
  const net::WaitPlan plan{expected, &polling, /*back_soon=*/false};
  auto task = ServingWait(reactor_, is_own).wait(future, hint, plan);
  if (task) reactor_.run_here(std::move(task));
  return true;
}

TimerId Agent::call_at(TimePoint at, std::function<void()> callback) {
  return reactor_.timers().add(at, std::move(callback));
}

bool Agent::cancel(TimerId timer) { return reactor_.timers().cancel(timer); }

void Agent::run(std::function<void()> task, Rejected rejected) {
  reactor_.run(std::make_unique<PlainTask>(std::move(task), std::move(rejected)));
}

void Agent::run_here(const std::function<void()>& fn) {
  reactor_.run_here(std::make_unique<PlainTask>(fn));
}

void Agent::resume(CallContext call, std::function<void()> task, Rejected rejected) {
  reactor_.run(
      std::make_unique<ResumedTask>(std::move(call), std::move(task), std::move(rejected)));
}

void Agent::on_worker_lost(OnLost callback) {
  MutexLock lock(mutex_);
  on_lost_.push_back(std::move(callback));
}

void Agent::on_worker_reached(OnReached callback) {
  MutexLock lock(mutex_);
  on_reached_.push_back(std::move(callback));
}

void Agent::tell_reached(int rank) const {
  std::vector<OnReached> callbacks;
  {
    MutexLock lock(mutex_);
    if (stopped_ || rank == options_.self.rank) return;
    callbacks = on_reached_;
  }
  for (const OnReached& callback : callbacks) callback(rank);
}

void Agent::on_late_reply(OnLateReply callback) {
  MutexLock lock(mutex_);
  on_late_reply_ = std::move(callback);
}

void Agent::on_late_reply(const std::shared_ptr<Connection>& connection, wire::InFrame&& frame) {
  OnLateReply callback;
  {
    MutexLock lock(mutex_);
    callback = on_late_reply_;
  }
  if (callback) callback(connection->peer().rank, std::move(frame));
}

std::shared_ptr<const void> Agent::watch(int rank) {
  std::shared_ptr<Connection> line;
  {
    MutexLock lock(mutex_);
    line = peers_.at(static_cast<size_t>(rank)).line;
  }
  return line ? std::make_shared<const Connection::Watch>(std::move(line)) : nullptr;
}

std::vector<wire::FunctionRecord> Agent::functions_of(int rank) const {
  if (rank == options_.self.rank) return options_.functions;
  const auto line = known_line(rank);
  return line ? line->functions() : std::vector<wire::FunctionRecord>{};
}

std::vector<Route> Agent::routes() const {
  std::vector<std::shared_ptr<Connection>> lines;
  {
    MutexLock lock(mutex_);
    for (const auto& peer : peers_) {
      if (peer.line && peer.line->carries()) lines.push_back(peer.line);
    }
  }
  std::vector<Route> routes;
  for (const auto& line : lines) routes.push_back(line->route());
  return routes;
}

MessengerCounters Agent::counters() const {
  MessengerCounters counters;
  counters.calls_sent = calls_sent_.load();
  counters.calls_received = calls_received_.load();
  const net::ReactorCounters reactor = reactor_.counters();
  counters.threads = reactor.threads;
  counters.wakeups = reactor.wakeups;
  counters.polls_that_found = reactor.spin_hits;
  counters.polls_in_vain = reactor.spin_misses;
  counters.polling = reactor.spin_time;
  const net::MemoryPoolCounters pool = pool_->counters();
  counters.received_memory = pool.used_bytes;
  counters.idle_memory = pool.idle_bytes;
  const net::MemoryPoolCounters shared_pool = shared_pool_->counters();
  counters.shared_memory = shared_pool.used_bytes;
  counters.idle_shared_memory = shared_pool.idle_bytes;
  counters.mapped_memory = mapped_bytes_->in_use();
  counters.idle_mapped_memory = mapped_bytes_->idle();
  MutexLock lock(mutex_);
  counters += ended_;
  for (const auto& peer : peers_) {
    for (const auto& line : {peer.line, peer.incoming}) {
      if (!line) continue;
      counters.connections += line->carries();
      counters.in_flight += line->calls_in_flight();
      counters.offered_memory += line->offered_bytes();
      counters.handed_over_memory += line->handed_over_bytes();
      counters.requests_sent += line->requests_sent();
      counters.requests_received += line->requests_received();
      counters += line->moved();
    }
  }
  return counters;
}

void Agent::on_request(const std::shared_ptr<Connection>& connection, wire::InFrame&& frame) {
  if (frame.header.kind == wire::Kind::kGoodbye) return connection->expect_end();
  if (frame.header.kind == wire::Kind::kLineEnd) {
    return contain("a line's end",
                   [&] { connection->expect_end_of_line(wire::decode_error(frame.meta.span())); });
  }
  if (frame.header.kind == wire::Kind::kPing) return connection->answer_ping();
  if (frame.header.kind == wire::Kind::kPong) return;  // that it came is all it says
  if (!(frame.header.flags & wire::kOneWay)) {
    calls_received_.fetch_add(1, std::memory_order_relaxed);
  }
  Deadline deadline;
  if (frame.header.remaining_us > 0) {
    deadline = Deadline::after(Micros(std::min<uint64_t>(frame.header.remaining_us, 1ull << 50)));
  }
  const HandlerSlot& slot = handlers_[static_cast<uint8_t>(frame.header.kind)];
  Request request(connection->peer().rank, std::move(frame), deadline, connection);
  if (!slot.handler) {
    request.fail(Error(Code::kNotRegistered, "this worker does not handle frames of kind '" +
                                                 std::string(name_of(request.kind())) + "'")
                     .advice("build both workers with the same farspan and the same rooms"));
  } else if (slot.run == Run::kInline) {
    contain("a handler", [&] { slot.handler(std::move(request)); });
  } else {
    auto* const waits =
        slot.run == Run::kByWaiter ? ServingWait::for_request(reactor_, request) : nullptr;
    auto task = std::make_unique<RequestTask>(slot.handler, std::move(request));
    waits ? waits->take(std::move(task)) : reactor_.run(std::move(task));
  }
}

void Agent::on_closed(const std::shared_ptr<Connection>& connection, const Error& why) {
  const auto rank = static_cast<size_t>(connection->peer().rank);
  std::vector<OnLost> callbacks;
  {
    MutexLock lock(mutex_);
    ended_ += connection->moved();
    if (rank >= peers_.size()) return;
    Peer& peer = peers_[rank];
    if (peer.line == connection) {
      peer.line = nullptr;
      peer.dialing = false;
      peer.untold.push_back(connection);  // until those below have been told
    }
    if (peer.incoming == connection) peer.incoming = nullptr;
    if (stopped_) return;
    if (connection->has_broken() || why.code() == Code::kCorrupt) {
      peer.unsteady.note_break(connection->transport(), Clock::now());
    } else {  // on purpose, which may be because of the way that was taken instead
      peer.unsteady = {};
    }
    callbacks = on_lost_;
  }
  const Error reason = connection->ending() ? Error(Code::kShutdown, "it has been shut down") : why;
  for (const auto& callback : callbacks) callback(static_cast<int>(rank), reason);
  open_next(rank, *connection);
}

// How long a silence was does not make it another one.
bool Agent::is_news(int rank, const std::vector<std::string>& in_vain) {
  std::string reasons;
  for (const std::string& one : in_vain) {
    std::ranges::copy_if(one, std::back_inserter(reasons),
                         [](char c) { return c < '0' || c > '9'; });
  }
  MutexLock lock(mutex_);
  const bool is_known = rank >= 0 && static_cast<size_t>(rank) < peers_.size();
  auto& told = is_known ? peers_[static_cast<size_t>(rank)].told : told_of_any_;
  if (told.size() >= kMostReasons) told.clear();  // some are the peer's own words
  return told.insert(std::move(reasons)).second;
}

// The one that was made when `ended` had ended, by whoever was told before the others.
void Agent::open_next(size_t rank, const Connection& ended) {
  std::shared_ptr<Connection> next;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[rank];
    const auto is_ended = [&](const auto& line) { return line.get() == &ended; };
    if (std::erase_if(peer.untold, is_ended) == 0 || !peer.untold.empty() || stopped_) return;
    if (!peer.line || peer.line->is_closed() || peer.dialing || peer.reserved > 0) return;
    next = peer.line;
    peer.dialing = true;
  }
  dial(static_cast<int>(rank), next);
}

}  // namespace farspan::agent
