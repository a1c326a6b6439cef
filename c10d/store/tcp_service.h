// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TcpService: what the TCP store's server does, without I/O: bytes of clients come in, bytes for
// clients go out. TcpStoreServer drives it over sockets, tests by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/store/table.h>
#include <farspan/c10d/store/tcp_wire.h>

namespace farspan::dist {

struct TcpServiceLimits {
  Millis handshake{5'000};              // to say VALIDATE
  size_t max_strangers = 4096;          // who have not; the oldest go first
  size_t max_output = size_t{1} << 20;  // a client that reads slower is not read from meanwhile
  size_t max_waited_keys = 2 * kMaxTcpKeys;  // of all pending waits of one client
};

// Answers commands in order, only a WAIT's answer comes when its keys do. Waiters of a key are
// served in the order they came; a pushed value wakes one of them. A client that breaks the
// protocol is closed; one that does not begin with VALIDATE is ignored until its time is over, as
// PyTorch does.
//
// Threading: one thread at a time.
class TcpService {
 public:
  using ClientId = uint64_t;
  enum class Verdict {
    kRead,    // give it more
    kPause,   // do not read from it before resume() says kRead
    kIgnore,  // never read from it again; strangers_due() will name it
    kClose,
  };

  explicit TcpService(TcpServiceLimits limits = {}) : limits_(limits) {}

  void opened(ClientId client, TimePoint now);
  Verdict received(ClientId client, std::string_view bytes);
  // Output has been taken: goes on with what was left of the input.
  Verdict resume(ClientId client);
  void closed(ClientId client);

  // What is to be sent to a client; the caller takes it away.
  std::string& output(ClientId client);
  // Clients that have got output since the last call, or were touched; with repetitions.
  std::vector<ClientId> take_touched();
  // Its output is to be looked at again, if there is any.
  void touch(ClientId client);

  // Strangers to be closed: their time is over, or there are too many.
  std::vector<ClientId> strangers_due(TimePoint now);
  // When strangers_due() should be asked next; never without strangers.
  Deadline next_due() const;

  size_t clients() const { return clients_.size(); }
  size_t waits() const { return waits_.size(); }
  const Table& table() const { return table_; }

 private:
  struct Client {
    bool validated = false;
    bool ignored = false;
    std::string unread;  // input that came while the output was full
    std::string output;
    TcpCommandReader reader;
    std::set<uint64_t> waits;
    size_t waited_keys = 0;
    // Queues for whose values it was woken; the next command tells whether it takes one.
    std::vector<std::string> granted;
  };
  struct Wait {
    ClientId client;
    std::vector<std::string> keys;
    std::set<std::string> missing;  // under each of these it stands in waiting_
  };

  Verdict consume(ClientId id, Client& client, std::string_view bytes);
  Verdict greet(Client& client, std::string_view* bytes);
  // False: the command breaks the protocol.
  bool execute(ClientId id, Client& client, TcpCommand command);
  bool execute_queue(Client& client, TcpCommand& command);
  bool execute_many(ClientId id, Client& client, TcpCommand& command);
  bool execute_append(TcpCommand& command);
  bool execute_compare_set(Client& client, TcpCommand& command);
  bool reply_values(Client& client, const std::vector<std::string>& keys);
  bool reply_keys(Client& client);

  void store(const std::string& key, std::string value);
  bool begin_wait(ClientId id, Client& client, std::vector<std::string> keys);
  void cancel_waits(Client& client);
  void end_wait(uint64_t id);
  // The key is there: true when the wait is over.
  bool advance(uint64_t id, const std::string& key);
  void wake_all(const std::string& key);
  void wake_one(const std::string& key);
  void settle_grants(Client& client, const TcpCommand* next);

  const TcpServiceLimits limits_;
  Table table_;
  std::unordered_map<ClientId, Client> clients_;
  std::deque<std::pair<ClientId, TimePoint>> strangers_;  // by age; some are known by now
  size_t strangers_alive_ = 0;
  std::unordered_map<uint64_t, Wait> waits_;
  std::unordered_map<std::string, std::set<uint64_t>> waiting_;  // key to waits, by age
  uint64_t next_wait_ = 0;
  std::vector<ClientId> touched_;
};

}  // namespace farspan::dist
