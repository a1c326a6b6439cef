#include <farspan/c10d/store/tcp_connection.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/dial.h>
#include <farspan/c10d/store/store.h>
#include <farspan/c10d/store/tcp_wire.h>

namespace farspan::dist {
namespace {

// What the server has to answer to CANCEL_WAIT when the caller's time is over already.
constexpr std::chrono::seconds kCancelGrace{5};
constexpr size_t kChunk = 65536;

Error not_a_store(const std::string& why) {
  return Error(Code::kCorrupt, why).advice("is there something else at this host and port?");
}

}  // namespace

TcpConnection::TcpConnection(const net::HostPort& where, Deadline deadline)
    : fd_(net::dial(where, deadline)), nonce_(static_cast<uint32_t>(getpid())) {
  std::string greeting;
  put_code(greeting, TcpCode::kValidate);
  put_u32(greeting, kTcpMagic);
  send(greeting, deadline);
  ping(deadline);
}

bool TcpConnection::is_idle() const noexcept {
  pollfd poller{fd_.get(), POLLIN, 0};
  return taken_ == input_.size() && poll(&poller, 1, 0) == 0;
}

void TcpConnection::send(std::string_view bytes, Deadline deadline) {
  net::send_all(fd_.get(), bytes.data(), bytes.size(), deadline);
}

// Makes at least `size` bytes of input_ there to be taken.
void TcpConnection::fill(size_t size, Deadline deadline) {
  if (taken_ == input_.size()) {
    input_.clear();
    taken_ = 0;
  }
  while (input_.size() - taken_ < size) {
    const size_t have = input_.size();
    // Never more than has come, and as much again: a length is only a claim.
    input_.resize(have + std::max(kChunk, have - taken_));
    size_t got = 0;
    try {
      got = net::receive_some(fd_.get(), input_.data() + have, input_.size() - have, deadline);
    } catch (...) {
      input_.resize(have);
      throw;
    }
    input_.resize(have + got);
  }
}

template <class Integer>
Integer TcpConnection::read_integer(Deadline deadline) {
  fill(sizeof(Integer), deadline);
  Integer value;
  std::memcpy(&value, input_.data() + taken_, sizeof value);
  taken_ += sizeof value;
  return value;
}

uint8_t TcpConnection::read_u8(Deadline deadline) { return read_integer<uint8_t>(deadline); }
uint32_t TcpConnection::read_u32(Deadline deadline) { return read_integer<uint32_t>(deadline); }
int64_t TcpConnection::read_i64(Deadline deadline) { return read_integer<int64_t>(deadline); }

std::string TcpConnection::read_text(Deadline deadline) {
  const auto size = read_integer<uint64_t>(deadline);
  if (size > kMaxStoreReplyBytes) {
    throw not_a_store("an answer of " + std::to_string(size) + " bytes");
  }
  fill(size, deadline);
  std::string text = input_.substr(taken_, size);
  taken_ += size;
  return text;
}

std::vector<std::string> TcpConnection::read_texts(size_t count, Deadline deadline) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; ++i) texts.push_back(read_text(deadline));
  return texts;
}

void TcpConnection::ping(Deadline deadline) {
  std::string command;
  put_code(command, TcpCode::kPing);
  put_u32(command, ++nonce_);
  send(command, deadline);
  if (read_u32(deadline) != nonce_) throw not_a_store("the answer to a ping is a wrong one");
}

bool TcpConnection::wait(const std::vector<std::string>& keys, Deadline deadline) {
  std::string command;
  put_code(command, TcpCode::kWait);
  put_i64(command, static_cast<int64_t>(keys.size()));
  for (const std::string& key : keys) put_text(command, key);
  send(command, deadline);
  try {
    if (read_u8(deadline) == kTcpStopWaiting) return true;
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
    return cancel_wait();
  }
  throw not_a_store("the answer to a wait is a wrong one");
}

std::optional<std::string> TcpConnection::pop(const std::string& queue, Deadline deadline,
                                              const ServerTimes& times) {
  std::string command;
  put_code(command, TcpCode::kQueuePop);
  put_text(command, queue);
  const Deadline answer = answer_by(deadline, times);
  send(command, answer);
  try {
    const int64_t size = read_i64(answer);  // with the value that it has just taken out
    if (size < 0) throw not_a_store("a queue of a negative size");
    if (size == 0) return std::nullopt;
    return read_text(answer);
  } catch (const Error& error) {
    throw may_have_taken(error);
  }
}

// Whether the keys came at the last moment: then that answer is under way before the one to this.
bool TcpConnection::cancel_wait() {
  const Deadline deadline = Deadline::after(kCancelGrace);
  std::string command;
  put_code(command, TcpCode::kCancelWait);
  send(command, deadline);
  uint8_t answer = read_u8(deadline);
  const bool came = answer == kTcpStopWaiting;
  if (came) answer = read_u8(deadline);
  if (answer != kTcpWaitCancelled)
    throw not_a_store("the answer to a cancelled wait is a wrong one");
  return came;
}

}  // namespace farspan::dist
