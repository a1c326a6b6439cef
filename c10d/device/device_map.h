// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DeviceMap: on which device of another worker a tensor arrives that is on one of this worker's.
#pragma once

#include <compare>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace farspan::device {

// Where a tensor can be: the processor's memory, or a device, by its number in its process.
struct Place {
  static constexpr int kCpu = -1;
  int device = kCpu;

  // "cpu", "cuda:1"
  std::string text() const;
  auto operator<=>(const Place&) const = default;
};
inline constexpr Place cpu{};
inline constexpr Place cuda(int device) noexcept { return {device}; }

// The line of a program that adds an entry to its map for that worker; "cuda(..)" for the one that
// its author has to choose.
std::string line_to_add(const std::string& worker, std::optional<Place> here,
                        std::optional<Place> there);

// The default one: each device is mapped to the one of the same number, and the CPU to the CPU. One
// with entries: these alone, and the CPU to the CPU unless an entry says otherwise. Replies, and
// the gradients of what was sent, go back by the inverse.
//
// Threading: a value.
class DeviceMap {
 public:
  DeviceMap() = default;
  //   throws  Error kInvalidArgument: a place is mapped twice, or two to the same
  DeviceMap(std::initializer_list<std::pair<Place, Place>> entries);

  // Adds an entry.  throws  as the constructor
  void set(Place here, Place there);
  bool is_default() const noexcept { return there_.empty(); }

  // Before anything is sent.
  //   devices_here, devices_there  how many this process and that worker's have
  //   throws  Error kInvalidArgument: an entry names a device that is not there
  void check(const std::string& worker, int devices_here, int devices_there) const;

  // Where a tensor at `here` arrives.
  //   throws  Error kInvalidArgument: there is no entry for it; with the line to be added
  Place there(const std::string& worker, Place here) const;
  // Where what that worker sends back from `there` arrives.  throws  as there()
  Place here(const std::string& worker, Place there) const;

  // Here, there.
  const std::map<Place, Place>& entries() const noexcept { return there_; }
  bool operator==(const DeviceMap&) const = default;

 private:
  static std::optional<Place> find(const std::map<Place, Place>& entries, Place place);

  std::map<Place, Place> there_, here_;  // one is the other's inverse
};

}  // namespace farspan::device
