// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Route: the way to another worker, and why it is not a better one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace farspan {

// Whether workers of one host read large tensors straight out of each other's memory
// (process_vm_readv(2)), which costs one copy and no time of the sender.
enum class CrossMemoryAttach {
  kForbidden,  // they travel as everything else does
  kAllowed,    // where both workers allow it, and the system does
  // A worker of this host with whom it does not work both ways cannot be called, nor one that is
  // reached through TCP here.
  kRequired,
};

// Whether tensors go from an accelerator's memory to another's, and not through the processor's.
enum class DeviceToDevice {
  kForbidden,  // they go through the processor's memory
  kAllowed,    // where both workers allow it, and their devices can
  kRequired,   // a dense one that is to arrive on a device and cannot go so is not sent
};

// Over one route, or over all. Threading: a value.
struct BytesMoved {
  uint64_t bytes_sent = 0, bytes_received = 0;  // over the transport; beside that, of tensors
  uint64_t bytes_read = 0;                      // that came: out of the sender's memory,
  uint64_t bytes_handed_over = 0;               // or without a copy,
  uint64_t bytes_of_devices = 0;                // or from device to device

  // What has come in all; the sum over all workers is what has moved.
  uint64_t bytes_come() const noexcept {
    return bytes_received + bytes_read + bytes_handed_over + bytes_of_devices;
  }

  BytesMoved& operator+=(const BytesMoved& other) noexcept {
    bytes_sent += other.bytes_sent;
    bytes_received += other.bytes_received;
    bytes_read += other.bytes_read;
    bytes_handed_over += other.bytes_handed_over;
    bytes_of_devices += other.bytes_of_devices;
    return *this;
  }
};

// How tensors get from a device here to one of another worker. Threading: a value.
struct DeviceRoute {
  int here = 0, there = 0;     // the devices' numbers
  bool is_direct = false;      // from device to device; else through the processor's memory
  std::string why_not_direct;  // the reason
  // Of a direct one, what lay in memory that other processes cannot open, as it is with PyTorch's
  // expandable segments: bytes that were copied on the device first, into memory that they can; and
  // those that found no room there, and went through the processor's memory.
  uint64_t bytes_staged = 0, bytes_not_staged = 0;
};

// One that is open. Threading: a value.
struct Route : BytesMoved {
  std::string worker;
  std::string transport;             // "shm farspan-12-ab34"
  std::vector<std::string> refused;  // better ones, each with why: "shm: another host, or not .."
                                     // Empty where the other worker has dialled: it knows why
  bool reads_memory = false;         // large tensors that come are read out of its memory,
  bool is_read = false;              // and those that go out of this worker's, as far as is known
  std::string why_not_read;          // why one of the two does not work; over TCP not tried
  std::string why_not_mapped;        // why what it handed over was copied, the last time
  int lanes = 0;                     // connections beside it, to another host, for large tensors
  uint64_t bytes_by_lanes = 0;  // of all that was sent and received, also by those that have ended
  std::vector<DeviceRoute> devices;  // those between which tensors have been sent
};

}  // namespace farspan
