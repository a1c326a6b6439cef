#include <farspan/rpc/init/spawn.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/init/init.h>
#include <farspan/c10d/store/tcp_store_server.h>
#include <farspan/rpc/init/init.h>

namespace farspan {
namespace {

constexpr std::chrono::seconds kMercy{3};  // between SIGTERM and SIGKILL
constexpr Millis kHearsay{300};  // for the one that caused a failure to end after who noticed it
constexpr size_t kMaxErrorBytes = 4096;  // of what a copy says when it fails

// While it lives, the signals that end a program, and those of children that end, wait for next()
// instead of being acted on.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      // Held back, an ignored signal would arrive: under nohup, say.
      struct sigaction action {};
      sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) sigaddset(&held_, signal);
    }
    sigaddset(&held_, SIGCHLD);
    struct sigaction standard {};  // a program that ignores it would never hear how children ended
    standard.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &standard, &on_child_before_);
    pthread_sigmask(SIG_BLOCK, &held_, &mask_before_);
  }
  ~HeldSignals() { release(); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Sleeps until one comes; 0 when none did in time.
  int next(Deadline deadline) const {
    const auto left = std::min<Clock::duration>(deadline.remaining(), std::chrono::hours(1));
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec timeout{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
    return std::max(sigtimedwait(&held_, nullptr, &timeout), 0);
  }

  void release() {
    if (!std::exchange(holding_, false)) return;
    sigaction(SIGCHLD, &on_child_before_, nullptr);
    pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }

 private:
  sigset_t held_{}, mask_before_{};
  struct sigaction on_child_before_ {};
  bool holding_ = true;
};

struct Child {
  pid_t pid = -1;
  int rank = -1;
  int line = -1;  // a socket: to the child where the store is, from it why it failed
};

// How a child ended that ended badly. A cause outweighs that others lost their connections.
struct BadEnd {
  enum class Weight { kNoticed, kFailed, kKilled } weight = Weight::kFailed;
  std::string text;
};

BadEnd how_it_ended(const Child& child, int status) {
  using Weight = BadEnd::Weight;
  const std::string rank = "rank " + std::to_string(child.rank);
  if (WIFSIGNALED(status)) {
    return {Weight::kKilled, rank + " was ended by a signal: " + strsignal(WTERMSIG(status))};
  }
  std::array<char, kMaxErrorBytes> text{};
  const ssize_t got = recv(child.line, text.data(), text.size(), MSG_DONTWAIT);
  if (got > 0) {
    const std::string why(text.data(), static_cast<size_t>(got));
    const bool noticed = why.starts_with(name_of(Code::kDisconnected)) ||
                         why.starts_with(name_of(Code::kUnavailable));
    return {noticed ? Weight::kNoticed : Weight::kFailed, rank + " threw " + why};
  }
  return {Weight::kFailed, rank + " ended with status " + std::to_string(WEXITSTATUS(status)) +
                               "; look at what it printed"};
}

// The processes that have been started. Lifetime: the destructor kills those that are left.
class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    signal_all(SIGKILL);
    for (const Child& child : running_) {
      while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      close(child.line);
    }
  }

  void add(const Child& child) { running_.push_back(child); }

  void tell_all(uint16_t port) const {
    // Fails only when the child has ended already; wait() says how.
    for (const Child& child : running_) send(child.line, &port, sizeof port, MSG_NOSIGNAL);
  }
  void close_lines() const {
    for (const Child& child : running_) close(child.line);
  }

  // Waits for all; ends the others when one ends badly, or a signal asks for it.
  //   returns  that signal, or 0
  int wait(const HeldSignals& signals) {
    int asked = 0;
    Deadline next;  // when they are told to end, then made to
    for (collect(); !running_.empty(); collect()) {
      if (failure_ && next.is_never()) {
        const bool certain = failure_->weight == BadEnd::Weight::kKilled;
        next = Deadline::after(certain ? Millis(0) : kHearsay);
      }
      if (next.expired()) {
        signal_all(told_ ? SIGKILL : SIGTERM);
        told_ = true;
        next = Deadline::after(kMercy);
      }
      const int signal = signals.next(next);
      if (signal == 0 || signal == SIGCHLD) continue;
      if (asked == 0) asked = signal;
      next = Deadline::after(Millis(0));
    }
    return asked;
  }

  const std::optional<BadEnd>& failure() const { return failure_; }

 private:
  void signal_all(int signal) const {
    for (const Child& child : running_) kill(child.pid, signal);
  }

  // Takes leave of those that have ended. How they ended when told to says nothing.
  void collect() {
    std::erase_if(running_, [&](const Child& child) {
      int status = 0;
      if (waitpid(child.pid, &status, WNOHANG) == 0) return false;
      if (status != 0 && !told_) {
        BadEnd end = how_it_ended(child, status);
        if (!failure_ || end.weight > failure_->weight) failure_ = std::move(end);
      }
      close(child.line);
      return true;
    });
  }

  std::vector<Child> running_;
  std::optional<BadEnd> failure_;
  bool told_ = false;  // to end
};

void say_why(int line, const std::string& text) {
  send(line, text.data(), std::min(text.size(), kMaxErrorBytes), MSG_NOSIGNAL);
}

[[noreturn]] void be_child(int rank, int processes, int line, pid_t parent, HeldSignals& signals,
                           const std::function<void(int, int)>& run) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before prctl()
  signals.release();
  uint16_t port = 0;
  ssize_t got = 0;
  while ((got = recv(line, &port, sizeof port, 0)) < 0 && errno == EINTR) {
  }
  if (got != sizeof port) _exit(1);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(processes).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);  // the store is there: no rank hosts one
  int status = 0;
  try {
    run(rank, processes);
    if (has_joined()) {
      throw Error(Code::kInvalidArgument, "it returned while it was still a worker")
          .advice("call shutdown() last in every worker: it waits until nobody needs it any more");
    }
  } catch (const Error& e) {
    say_why(line, e.what());
    status = 1;
  } catch (...) {
    const Error error = to_error(std::current_exception());
    say_why(line, error.remote_type() + ": " + error.message());
    status = 1;
  }
  std::fflush(nullptr);
  _exit(status);  // the parent's exit handlers are not this process's
}

// Whoever wrote last may have left the cursor behind a progress bar.
void say_that_all_ended(int signal, int processes) {
  std::fflush(nullptr);
  std::fprintf(stderr, "%sstopped by SIG%s: all %d processes have ended\n",
               isatty(STDERR_FILENO) ? "\n" : "", sigabbrev_np(signal), processes);
  std::fflush(stderr);
}

}  // namespace

void spawn(int processes, const std::function<void(int, int)>& run) {
  if (processes < 1) {
    throw Error(Code::kInvalidArgument, std::to_string(processes) + " processes")
        .operation("spawn")
        .advice("start one or more");
  }
  if (has_joined()) {
    throw Error(Code::kInvalidArgument, "this process is a worker already, with threads of its own")
        .operation("spawn")
        .advice("call it before init_rpc, first thing in main()");
  }
  if (dist::is_launched()) {
    log(LogLevel::kWarning, "rpc/init",
        "spawn() starts " + std::to_string(processes) +
            " processes of its own in each of those that a launcher has started: so "
            "many jobs. To take part in the launcher's, call the function itself where "
            "dist::is_launched()");
  }
  std::fflush(nullptr);  // or each copy prints it again
  const pid_t parent = getpid();
  HeldSignals signals;
  int asked = 0;
  std::optional<BadEnd> failure;
  {
    Children children;
    for (int rank = 0; rank < processes; ++rank) {
      int ends[2] = {-1, -1};
      const bool connected = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0;
      const pid_t pid = connected ? fork() : -1;
      if (pid == 0) {
        close(ends[1]);
        children.close_lines();  // its siblings'
        be_child(rank, processes, ends[0], parent, signals, run);
      }
      const int error = errno;
      if (connected) close(ends[0]);
      if (pid < 0) {
        if (connected) close(ends[1]);
        throw Error(Code::kOverloaded, std::strerror(error))
            .operation("spawn")
            .advice("raise the limits on processes and open files, or start fewer");
      }
      children.add({pid, rank, ends[1]});
    }
    // Only now: a thread of the server's would not be copied, but its descriptors would.
    const auto server = dist::TcpStoreServer::start();
    children.tell_all(server->port());
    asked = children.wait(signals);
    failure = children.failure();
  }
  if (asked != 0) {
    say_that_all_ended(asked, processes);
    signals.release();
    raise(asked);
    throw Error(Code::kCancelled, std::string("stopped by SIG") + sigabbrev_np(asked))
        .operation("spawn");
  }
  if (failure) throw Error(Code::kRemote, failure->text).operation("spawn");
}

}  // namespace farspan
