// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// FileStore: a store in a file that all workers reach: one host, or a shared file system with
// flock(2). Shares its file with PyTorch's FileStore.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/store/file_log.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist {

// Waiting looks at the file every 1 to 10 ms. No queues. A process that is killed at any moment
// leaves no part of a record that others would see. Throws what Store says;
// kInvalidArgument, too, for a file that is no store's.
//
// Threading: as Store; a store's threads take turns at the file, and one that waits sleeps outside.
// Lifetime:  each store counts itself in the file; once all have gone, and at least `world_size`
//            have come and gone, the last removes the file. A crashed worker leaves it behind.
class FileStore final : public Store {
 public:
  // Makes the file when it is missing.
  //   path        of the file; its folder must exist
  //   world_size  -1: never remove the file
  //   throws      Error kUnavailable, kOverloaded (both name the path and the system's reason)
  explicit FileStore(std::string path, int world_size = -1, Millis timeout = kDefaultStoreTimeout);
  ~FileStore() override;

  std::string address() const override { return "file://" + path_; }
  const std::string& path() const noexcept { return path_; }

 private:
  class Member;
  FileStore(std::shared_ptr<Member> member, Millis timeout);

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

  const std::shared_ptr<Member> member_;  // with the clones
  const std::string path_;
  Mutex mutex_;
  FileLog log_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::dist
