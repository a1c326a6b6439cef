// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// PrefixStore: a part of another store, so that several users of one store do not meet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/store/store.h>

namespace farspan::dist {

// Key "k" here is "<prefix>/k" in `store`, as in PyTorch. num_keys() and list_keys() see only keys
// with the prefix, and without it (PyTorch counts all). Begins with the timeout of `store`, then
// goes by its own. Throws what `store` does, and kInvalidArgument for a key that is too long with
// the prefix.
//
// Threading: as Store. Lifetime: keeps `store`.
class PrefixStore final : public Store {
 public:
  //   throws  Error kInvalidArgument: `store` is null
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);

  std::string address() const override { return store_->address() + " under '" + prefix_ + "/'"; }
  bool has_queues() const noexcept override { return store_->has_queues(); }
  const std::string& prefix() const noexcept { return prefix_; }
  const std::shared_ptr<Store>& store() const noexcept { return store_; }

 private:
  std::string full(const std::string& key) const;
  std::vector<std::string> full(const std::vector<std::string>& keys) const;

  std::shared_ptr<Store> do_clone() override;
  void do_set(const std::string& key, const std::string& value, Deadline deadline) override;
  std::string do_get(const std::string& key, Deadline deadline) override;
  int64_t do_add(const std::string& key, int64_t delta, Deadline deadline) override;
  std::optional<std::string> do_compare_set(const std::string& key, const std::string& expected,
                                            const std::string& desired, Deadline deadline) override;
  bool do_check(const std::vector<std::string>& keys, Deadline deadline) override;
  void do_wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool do_delete_key(const std::string& key, Deadline deadline) override;
  void do_append(const std::string& key, const std::string& value, Deadline deadline) override;
  std::vector<std::string> do_multi_get(const std::vector<std::string>& keys,
                                        Deadline deadline) override;
  void do_multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values,
                    Deadline deadline) override;
  int64_t do_num_keys(Deadline deadline) override;
  std::vector<std::string> do_list_keys(Deadline deadline) override;
  void do_queue_push(const std::string& key, const std::string& value, Deadline deadline) override;
  std::string do_queue_pop(const std::string& key, Deadline deadline) override;
  std::optional<std::string> do_queue_try_pop(const std::string& key, Deadline deadline) override;
  int64_t do_queue_len(const std::string& key, Deadline deadline) override;

  const std::string prefix_;
  const std::shared_ptr<Store> store_;  // shared with whoever made it
};

}  // namespace farspan::dist
