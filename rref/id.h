// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The names of remote references: who made them, where the value lives, and which handle is which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace farspan {

// One run of one worker. A worker that was restarted has its rank again, but another instance: 64
// random bits, drawn at start. So nothing that belonged to the earlier run is taken for its own.
struct WorkerRun {
  int32_t rank = -1;
  uint64_t instance = 0;
  friend bool operator==(const WorkerRun&, const WorkerRun&) = default;
};

// A remote value. `serial` counts, from 1, the values that `creator` asked of `owner`: so an owner
// knows which requests to create are still to come, and an id is never used twice.
struct RRefId {
  WorkerRun creator, owner;
  uint64_t serial = 0;
  friend bool operator==(const RRefId&, const RRefId&) = default;
};

// One handle that `parent` made, for itself or for the worker it passed the reference to. `serial`
// counts from 1; 0 names no fork.
struct ForkId {
  WorkerRun parent;
  uint64_t serial = 0;
  friend bool operator==(const ForkId&, const ForkId&) = default;
};

// What a handle is known by on the worker that holds it. The owner's own handles are not told
// apart: they have no fork.
struct HandleId {
  RRefId rref;
  ForkId fork;
  bool at_owner() const noexcept { return fork.serial == 0; }
  friend bool operator==(const HandleId&, const HandleId&) = default;
};

// "rref 0/17@2": the 17th that rank 0 asked of rank 2.
inline std::string to_text(const RRefId& id) {
  return "rref " + std::to_string(id.creator.rank) + "/" + std::to_string(id.serial) + "@" +
         std::to_string(id.owner.rank);
}
// "fork 0/5": the 5th that rank 0 made.
inline std::string to_text(const ForkId& id) {
  return "fork " + std::to_string(id.parent.rank) + "/" + std::to_string(id.serial);
}

namespace detail {
// Spreads the entropy of `value` over all bits, on top of `seed`.
constexpr uint64_t mix(uint64_t seed, uint64_t value) noexcept {
  uint64_t h = (seed ^ value) * 0x9e3779b97f4a7c15u;
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93u;
  return h ^ (h >> 29);
}
}  // namespace detail

}  // namespace farspan

template <>
struct std::hash<farspan::WorkerRun> {
  size_t operator()(const farspan::WorkerRun& run) const noexcept {
    return farspan::detail::mix(run.instance, static_cast<uint32_t>(run.rank));
  }
};
template <>
struct std::hash<farspan::RRefId> {
  size_t operator()(const farspan::RRefId& id) const noexcept {
    const std::hash<farspan::WorkerRun> of_run;
    return farspan::detail::mix(farspan::detail::mix(of_run(id.creator), of_run(id.owner)),
                                id.serial);
  }
};
template <>
struct std::hash<farspan::ForkId> {
  size_t operator()(const farspan::ForkId& id) const noexcept {
    return farspan::detail::mix(std::hash<farspan::WorkerRun>()(id.parent), id.serial);
  }
};
