// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SharedBlocks: memory for a MemoryPool that other processes of this host can map, block by block
// (MappedBlocks), when they are told a block's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/memory_pool.h>
#include <farspan/c10d/net/shared_memory.h>

namespace farspan::net {

// How another process finds a block. A descriptor may be closed and used for something else before
// it does; no two blocks have one id.
struct BlockName {
  uint64_t id = 0;  // never 0
  uint64_t bytes = 0;
  int descriptor = -1;  // of the process whose block it is

  // That of its memory, see SharedMemory.
  std::string text() const;
};

class SharedBlocks final : public BlockMemory {
 public:
  SharedBlocks();

  //   throws  Error kOverloaded: no descriptors or memory left
  void* make(size_t bytes) override;
  void free(void* block, size_t bytes) noexcept override;
  bool may_keep(void* block) noexcept override;

  struct Place {
    BlockName block;
    uint64_t offset = 0;
  };
  // Where it lies; none: in no block.
  std::optional<Place> find(const void* address) const;
  // The block of this address is never used again here, once it is let go: others may still use it.
  void abandon(const void* address) noexcept;

 private:
  struct Block {
    SharedMemory memory;
    uint64_t id;
    bool is_abandoned = false;
  };
  using Blocks = std::map<const std::byte*, Block>;  // by their first byte
  static auto find_in(auto& blocks, const void* address);

  const uint64_t first_id_;  // random: other processes have others
  mutable Mutex mutex_;
  uint64_t made_ FARSPAN_GUARDED_BY(mutex_) = 0;
  Blocks blocks_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::net
