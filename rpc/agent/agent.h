// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Agent: the Messenger over real connections. It listens, dials when a peer is first called, shakes
// hands, and hands requests to the rooms that handle their kind.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/mapped_blocks.h>
#include <farspan/c10d/net/memory_pool.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/net/shared_blocks.h>
#include <farspan/c10d/transport/transport.h>
#include <farspan/rpc/agent/connection.h>
#include <farspan/rpc/agent/greeting.h>
#include <farspan/rpc/agent/messenger.h>
#include <farspan/rpc/agent/unsteady_ways.h>

namespace farspan::agent {

struct AgentOptions {
  WorkerInfo self;
  std::string generation;  // of the job: workers of another one are refused
  std::vector<std::string>
      transports;  // to listen on and to prefer, in order; empty: shm, unix, tcp
  std::string bind_host = "127.0.0.1";  // for TCP
  Millis connect_timeout{10'000};       // with the handshake
  net::ReactorOptions reactor;
  wire::FrameLimits frame_limits;
  ConnectionOptions connection;
  std::vector<wire::FunctionRecord> functions;  // what this worker can be asked to run
};

// How to reach a worker: what each publishes in the store.
struct PeerRecord {
  WorkerInfo info;
  wire::InstanceId instance;
  std::vector<std::string> endpoints;

  std::string to_text() const;
  //   throws  Error kCorrupt
  static PeerRecord from_text(const std::string& text);
};

// Threading: as Messenger. Lifetime: stop() ends all activity; the destructor calls it.
class Agent final : public Messenger, private ConnectionOwner {
 public:
  // Listens at once.
  //   throws  Error kInvalidArgument (unknown transport, too many functions), kUnavailable (cannot
  //           listen)
  explicit Agent(AgentOptions options);
  ~Agent() override;

  PeerRecord record() const;
  // Who takes part, by rank, with this worker. Before the first call.
  void set_workers(std::vector<PeerRecord> records);

  // Says goodbye, ends every connection and thread. Calls that wait fail with kShutdown.
  //   throws  Error kInvalidArgument (in a thread of a reactor), and goes on
  void stop();

  const WorkerInfo& self() const noexcept override { return options_.self; }
  const std::vector<WorkerInfo>& workers() const noexcept override { return workers_; }
  wire::InstanceId instance_of(int rank) const override;
  void handle(wire::Kind kind, Run run, Handler handler) override;
  void call(int to, wire::OutFrame& frame, Deadline deadline, std::shared_ptr<ReplyHandler> handler,
            bool will_wait) override;
  bool cancel(int to, const ReplyHandler& handler) override;
  void post(int to, wire::OutFrame& frame) override;
  bool wait(FutureCore& future, Deadline deadline, int from, net::Expected expected = {}) override;
  bool wait_and_serve(FutureCore& future, int from,
                      const std::function<bool(const Request&)>& is_own, net::SpinGovernor& polling,
                      net::Expected expected) override;
  TimePoint now() const noexcept override { return Clock::now(); }
  TimerId call_at(TimePoint at, std::function<void()> callback) override;
  bool cancel(TimerId timer) override;
  void run(std::function<void()> task, Rejected rejected = nullptr) override;
  void run_here(const std::function<void()>& fn) override;
  void resume(CallContext call, std::function<void()> task, Rejected rejected) override;
  void on_worker_lost(OnLost callback) override;
  void on_worker_reached(OnReached callback) override;
  void on_late_reply(OnLateReply callback) override;
  std::shared_ptr<const void> watch(int rank) override;
  std::vector<wire::FunctionRecord> functions_of(int rank) const override;
  Buffer allocate(size_t bytes) override { return pool_->allocate(bytes); }
  Buffer allocate_shared(size_t bytes) override { return shared_pool_->allocate(bytes); }
  MessengerCounters counters() const override;
  std::vector<Route> routes() const override;

  net::Reactor& reactor() noexcept { return reactor_; }

 private:
  struct Peer {
    PeerRecord record;
    std::shared_ptr<Connection> line;      // null before the first call, and after a loss
    std::shared_ptr<Connection> incoming;  // to itself: the other end
    bool dialing = false;
    int reserved = 0;  // handshakes that were welcomed, and will open the line any moment
    // Lines that have ended, of which not all have been told: until then the next one is not
    // opened.
    std::vector<std::shared_ptr<Connection>> untold;
    UnsteadyWays unsteady;
    std::set<std::string> told;  // why better ways were tried in vain, as it was logged
  };
  struct Welcome {                        // what admit() has let in
    int rank = -1;                        // that opens a line; -1: nobody
    std::shared_ptr<Connection> lane_of;  // null: a line of its own
  };
  struct Dial;
  struct HandlerSlot {
    Run run = Run::kAsTask;
    Handler handler;
  };

  void make_transports();
  wire::Hello hello() const;
  std::unique_ptr<wire::FrameReader> new_reader() const;

  std::optional<Error> try_to_call(int to, wire::OutFrame& frame, Deadline deadline,
                                   const std::shared_ptr<ReplyHandler>& handler, bool will_wait,
                                   bool had_room);

  // Dialing and being dialled: dial.cc.
  std::shared_ptr<Connection> new_line(const WorkerInfo& peer);
  std::shared_ptr<Connection> line_to(int rank);
  std::shared_ptr<Connection> known_line(int rank) const;  // null: there is none
  std::vector<std::shared_ptr<Connection>> lines_of(int rank) const;
  void open_next(size_t rank, const Connection& ended);
  void dial(int rank, std::shared_ptr<Connection> line);
  void dial_until(Deadline deadline, int rank, const std::shared_ptr<Connection>& line);
  void try_next_way(const std::shared_ptr<Dial>& dial);
  void leave_when_silent(const std::shared_ptr<Dial>& dial, size_t way, size_t left);
  void leave_way(const std::shared_ptr<Dial>& dial, size_t way, const Error& why);
  void give_up_dialling(int rank, const std::shared_ptr<Connection>& line, const Error& why);
  void greet(const std::shared_ptr<Dial>& dial, size_t way,
             std::unique_ptr<transport::Stream> stream);
  RefusedWays against_better_ways(Dial& dial, size_t way) const;
  void accept(std::unique_ptr<transport::Stream> stream);
  void shake_hands(std::unique_ptr<transport::Stream> stream, Handshake handshake,
                   Greeting::OnEnd on_end);
  void greet_lane(const std::shared_ptr<Connection>& line, std::shared_ptr<void> dials,
                  std::unique_ptr<transport::Stream> stream);
  std::optional<Error> admit(const wire::Hello& peer, Welcome& welcome);
  void adopt(Greeting::Outcome outcome, int welcomed);
  void finish_adoption(int rank, const std::shared_ptr<Connection>& line);
  void tell_reached(int rank) const;
  void dial_again(const std::shared_ptr<Dial>& dial);

  void on_request(const std::shared_ptr<Connection>& connection, wire::InFrame&& frame) override;
  void on_late_reply(const std::shared_ptr<Connection>& connection, wire::InFrame&& frame) override;
  void on_closed(const std::shared_ptr<Connection>& connection, const Error& why) override;
  std::optional<Error> on_unsent(const std::shared_ptr<Connection>& connection,
                                 UnsentCall& call) override;
  void on_lanes_wanted(const std::shared_ptr<Connection>& connection) override;
  bool is_news(int rank, const std::vector<std::string>& in_vain) override;

  const AgentOptions options_;
  const wire::InstanceId instance_;
  const std::shared_ptr<net::MemoryPool> pool_;
  const std::shared_ptr<net::SharedBlocks> shared_blocks_;
  const std::shared_ptr<net::MemoryPool> shared_pool_;  // of shared_blocks_
  const std::shared_ptr<net::MappedBytes> mapped_bytes_;
  net::Reactor reactor_;
  const std::shared_ptr<net::Loop> loop_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;  // the last one is loopback
  std::vector<std::unique_ptr<transport::Listener>> listeners_;
  std::vector<WorkerInfo> workers_;        // constant after set_workers()
  std::array<HandlerSlot, 256> handlers_;  // each constant after its first frame may arrive
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> calls_sent_{0}, calls_received_{0}, next_chain_{1};

  mutable Mutex mutex_;
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::vector<Peer> peers_ FARSPAN_GUARDED_BY(mutex_);
  std::set<std::string> told_of_any_ FARSPAN_GUARDED_BY(mutex_);  // as Peer::told
  std::vector<std::weak_ptr<Greeting>> greetings_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<OnReached> on_reached_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<OnLost> on_lost_ FARSPAN_GUARDED_BY(mutex_);
  OnLateReply on_late_reply_ FARSPAN_GUARDED_BY(mutex_);
  BytesMoved ended_ FARSPAN_GUARDED_BY(mutex_);  // by the lines that have ended
};

}  // namespace farspan::agent
