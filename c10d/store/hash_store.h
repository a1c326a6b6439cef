// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// HashStore: a store in memory, for the threads of one process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/store/store.h>

namespace farspan::dist {

// The keys live as long as the store or any clone() of it. Throws what Store says.
//
// Threading: as Store; clones may be used by other threads at once.
class HashStore final : public Store {
 public:
  explicit HashStore(Millis timeout = kDefaultStoreTimeout);

  std::string address() const override { return "memory"; }
  bool has_queues() const noexcept override { return true; }

 private:
  struct Shared;
  HashStore(std::shared_ptr<Shared> shared, Millis timeout);

  std::shared_ptr<Store> do_clone() override;
  void do_set(const std::string& key, const std::string& value, Deadline) override;
  std::string do_get(const std::string& key, Deadline deadline) override;
  int64_t do_add(const std::string& key, int64_t delta, Deadline) override;
  std::optional<std::string> do_compare_set(const std::string& key, const std::string& expected,
                                            const std::string& desired, Deadline) override;
  bool do_check(const std::vector<std::string>& keys, Deadline) override;
  void do_wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool do_delete_key(const std::string& key, Deadline) override;
  void do_append(const std::string& key, const std::string& value, Deadline) override;
  std::vector<std::string> do_multi_get(const std::vector<std::string>& keys,
                                        Deadline deadline) override;
  void do_multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values,
                    Deadline) override;
  int64_t do_num_keys(Deadline) override;
  std::vector<std::string> do_list_keys(Deadline) override;
  void do_queue_push(const std::string& key, const std::string& value, Deadline) override;
  std::string do_queue_pop(const std::string& key, Deadline deadline) override;
  std::optional<std::string> do_queue_try_pop(const std::string& key, Deadline) override;
  int64_t do_queue_len(const std::string& key, Deadline) override;

  const std::shared_ptr<Shared> shared_;  // with the clones
};

}  // namespace farspan::dist
