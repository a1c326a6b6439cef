// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Store: keys and values that the workers of a job share while they find each other.
// Source: PyTorch's c10d::Store, whose names and meanings these are; where we differ: README.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/time.h>

namespace farspan::dist {

inline constexpr Millis kDefaultStoreTimeout{300'000};

// What one call may carry; more throws kInvalidArgument. Every store has the same limits.
inline constexpr size_t kMaxStoreKeyBytes = 8191;  // with the prefixes of PrefixStores
inline constexpr size_t kMaxStoreValueBytes = size_t{8} << 20;
inline constexpr size_t kMaxStoreKeys = 131072;
// What append() may grow a value to, and what one answer may carry.
inline constexpr size_t kMaxStoreReplyBytes = size_t{256} << 20;

// Keys and values are any bytes. Every call has a deadline: timeout(), or its own. Errors name the
// store's address, the operation, the key, and how long it took:
//   kTimeout, kDisconnected, kUnavailable  the store did not answer, went away, is not there
//   kInvalidArgument                       limits, a value that is no number, no queues here
//   kOverloaded                            no room on the disk, no descriptor left
//
// Threading: every method from any thread, many at once: a get() that waits holds up nobody else.
// Lifetime:  must outlive the calls made on it. After fork(2) only one side may go on using it.
class Store {
 public:
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // "tcp://127.0.0.1:29500", "file:///tmp/job", "memory".
  virtual std::string address() const = 0;

  // Another way to the same keys, independent of this one, with the same timeout.
  std::shared_ptr<Store> clone();

  // For calls that do not name their own; kNoTimeout waits for ever.
  Millis timeout() const noexcept { return timeout_.load(std::memory_order_relaxed); }
  void set_timeout(Millis timeout) noexcept { timeout_ = timeout; }

  // When it returns, everybody sees the value.
  void set(const std::string& key, const std::string& value);

  // Waits until the key exists and returns its value.
  std::string get(const std::string& key) { return get(key, timeout()); }
  std::string get(const std::string& key, Millis timeout);

  // Adds to a decimal number; a missing key counts as 0. Returns the sum.
  //   throws  Error kInvalidArgument: the value is no number, or the sum leaves 64 bits
  int64_t add(const std::string& key, int64_t delta);

  // Stores `desired` when the value is `expected`, or when the key is missing and `expected` is
  // empty. Returns the value that the key has then; nothing when it is missing still.
  std::optional<std::string> compare_set(const std::string& key, const std::string& expected,
                                         const std::string& desired);

  // Whether all of them exist (a queue that is not empty does). Does not wait.
  bool check(const std::vector<std::string>& keys);

  // Waits until all of them exist. A kTimeout names those that do not.
  void wait(const std::vector<std::string>& keys) { wait(keys, timeout()); }
  void wait(const std::vector<std::string>& keys, Millis timeout);

  // Whether there was one. Queues are not keys: pop them empty.
  bool delete_key(const std::string& key);

  // Adds to the end of the value; a missing key counts as empty.
  void append(const std::string& key, const std::string& value);

  // As get and set, many at once. Not atomic: others may see a part of it.
  std::vector<std::string> multi_get(const std::vector<std::string>& keys);
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values);

  // The keys that users made, in any order, and how many; queues are not among them.
  int64_t num_keys();
  std::vector<std::string> list_keys();

  // Queues: first in, first out; each value goes to one queue_pop. Names are apart from keys.
  virtual bool has_queues() const noexcept { return false; }
  void queue_push(const std::string& key, const std::string& value);
  // Waits until there is one.
  std::string queue_pop(const std::string& key) { return queue_pop(key, timeout()); }
  std::string queue_pop(const std::string& key, Millis timeout);
  // Nothing when it is empty.
  std::optional<std::string> queue_try_pop(const std::string& key);
  int64_t queue_len(const std::string& key);

 protected:
  explicit Store(Millis timeout) noexcept : timeout_(timeout) {}

  // What an implementation does. Arguments are within the limits; an Error needs only code, message
  // and advice, the caller adds the rest. Whatever waits throws kTimeout at the deadline.
  virtual std::shared_ptr<Store> do_clone() = 0;
  virtual void do_set(const std::string& key, const std::string& value, Deadline deadline) = 0;
  virtual std::string do_get(const std::string& key, Deadline deadline) = 0;
  virtual int64_t do_add(const std::string& key, int64_t delta, Deadline deadline) = 0;
  virtual std::optional<std::string> do_compare_set(const std::string& key,
                                                    const std::string& expected,
                                                    const std::string& desired,
                                                    Deadline deadline) = 0;
  virtual bool do_check(const std::vector<std::string>& keys, Deadline deadline) = 0;
  virtual void do_wait(const std::vector<std::string>& keys, Deadline deadline) = 0;
  virtual bool do_delete_key(const std::string& key, Deadline deadline) = 0;
  virtual void do_append(const std::string& key, const std::string& value, Deadline deadline) = 0;
  virtual std::vector<std::string> do_multi_get(const std::vector<std::string>& keys,
                                                Deadline deadline) = 0;
  virtual void do_multi_set(const std::vector<std::string>& keys,
                            const std::vector<std::string>& values, Deadline deadline) = 0;
  virtual int64_t do_num_keys(Deadline deadline) = 0;
  virtual std::vector<std::string> do_list_keys(Deadline deadline) = 0;
  // Only where has_queues().
  virtual void do_queue_push(const std::string& key, const std::string& value, Deadline deadline);
  virtual std::string do_queue_pop(const std::string& key, Deadline deadline);
  virtual std::optional<std::string> do_queue_try_pop(const std::string& key, Deadline deadline);
  virtual int64_t do_queue_len(const std::string& key, Deadline deadline);

 private:
  friend class PrefixStore;  // does what it is asked on the store below

  // Runs `body(deadline)`, and tells an Error of it where, what and how long.
  template <class Body>
  auto run(std::string_view verb, const std::vector<std::string>& keys, Millis timeout, Body body);

  std::atomic<Millis> timeout_;
};

}  // namespace farspan::dist
