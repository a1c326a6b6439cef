// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TcpWire: the bytes of the TCP store. Nothing is framed: a code, then its fields one after
// another; integers are little-endian, a text is its length as 64 bits and its bytes. Source: the
// protocol of PyTorch's TCPStore (README.md, "The wire").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace farspan::dist {

enum class TcpCode : uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
};

inline constexpr uint32_t kTcpMagic = 0x3C85F7CE;
inline constexpr uint8_t kTcpStopWaiting = 0;
inline constexpr uint8_t kTcpWaitCancelled = 1;
inline constexpr uint8_t kTcpAllExist = 0;
inline constexpr uint8_t kTcpNotAll = 1;

// The one key on the wire that users do not see: how many workers have come.
inline constexpr const char* kTcpWorkersKey = "init/";

// What the protocol allows: a key with its leading slash, a value, and what one command may hold.
inline constexpr size_t kMaxTcpKeyBytes = 8192;
inline constexpr size_t kMaxTcpValueBytes = size_t{8} << 20;
inline constexpr uint64_t kMaxTcpKeys = 131072;
inline constexpr size_t kMaxTcpCommandBytes = size_t{256} << 20;

void put_code(std::string& out, TcpCode code);
void put_u8(std::string& out, uint8_t value);
void put_u32(std::string& out, uint32_t value);
void put_i64(std::string& out, int64_t value);
void put_text(std::string& out, std::string_view text);

struct TcpCommand {
  TcpCode code{};
  int64_t number = 0;              // of kValidate, kPing (32 bits) and kAdd
  std::vector<std::string> texts;  // in their order on the wire
};

// Puts commands together from bytes as they come. Keeps no more than has come, whatever a length
// field says.
//
// Threading: one thread at a time.
class TcpCommandReader {
 public:
  enum class Status {
    kMore,     // all bytes were taken, the command goes on
    kCommand,  // take() has one
    kBroken,   // the bytes are none of the protocol: close the connection
  };
  // Takes bytes off the front, up to the end of a command.
  Status read(std::string_view* bytes);
  TcpCommand take();

 private:
  // What a command is made of, one letter each: k key, v value, n i64, 4 u32; '*' before the rest:
  // a count, and the rest that often.
  static const char* layout_of(TcpCode code);
  bool take_fixed(std::string_view* bytes, size_t size, uint64_t* value);
  Status read_field(std::string_view* bytes);
  Status read_text(std::string_view* bytes, size_t limit);

  bool begun_ = false;  // the code is known
  const char* layout_ = "";
  const char* next_ = "";  // in layout_
  uint64_t rounds_left_ = 1;
  std::string fixed_;  // the part of an integer that has come
  std::optional<uint64_t> text_left_;
  std::string text_;
  size_t held_ = 0;
  TcpCommand command_;
};

}  // namespace farspan::dist
