#include <farspan/rpc/init/spawn.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/store/tcp_store_server.h>

namespace farspan {
namespace {

constexpr std::chrono::seconds kMercy{5};  // between SIGTERM and SIGKILL

struct Child {
  pid_t pid = -1;
  int rank = -1;
  int port_socket = -1;  // tells it where the store is
};

[[noreturn]] void be_child(int rank, int processes, int port_socket, pid_t parent,
                           const std::function<void(int, int)>& run) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before prctl()
  uint16_t port = 0;
  ssize_t got = 0;
  while ((got = read(port_socket, &port, sizeof port)) < 0 && errno == EINTR) {
  }
  close(port_socket);
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
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    status = 1;
  }
  std::fflush(nullptr);
  _exit(status);  // the parent's exit handlers are not this process's
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return std::string("was ended by signal ") + strsignal(WTERMSIG(status));
  }
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

void end_all(const std::vector<Child>& children, int signal) {
  for (const Child& child : children) kill(child.pid, signal);
}

// Waits for all; when one ends badly, ends the others.
std::optional<Error> wait_for_all(std::vector<Child> children) {
  std::optional<Error> failure;
  Deadline mercy;
  while (!children.empty()) {
    int status = 0;
    pid_t ended = -1;
    for (const Child& child : children) {
      const pid_t pid = waitpid(child.pid, &status, WNOHANG);
      if (pid != 0) {
        ended = child.pid;
        break;
      }
    }
    if (ended < 0) {
      siginfo_t info{};
      if (!failure) {
        waitid(P_ALL, 0, &info, WEXITED | WNOWAIT);  // sleeps until a child ends
      } else {
        if (mercy.expired()) end_all(children, SIGKILL);
        usleep(10'000);
      }
      continue;
    }
    const auto child = std::find_if(children.begin(), children.end(),
                                    [&](const Child& one) { return one.pid == ended; });
    const int rank = child->rank;
    children.erase(child);
    if (status != 0 && !failure) {
      failure = Error(Code::kRemote, "rank " + std::to_string(rank) + " " + describe_end(status))
                    .operation("spawn")
                    .advice("look at what it printed");
      end_all(children, SIGTERM);
      mercy = Deadline::after(kMercy);
    }
  }
  return failure;
}

}  // namespace

void spawn(int processes, const std::function<void(int, int)>& run) {
  if (processes < 1) {
    throw Error(Code::kInvalidArgument, std::to_string(processes) + " processes")
        .operation("spawn");
  }
  std::fflush(nullptr);  // or each copy prints it again
  const pid_t parent = getpid();
  std::vector<Child> children;
  for (int rank = 0; rank < processes; ++rank) {
    int ends[2];
    const bool connected = socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0;
    const pid_t pid = connected ? fork() : -1;
    if (pid == 0) {
      close(ends[1]);
      for (const Child& sibling : children) close(sibling.port_socket);
      be_child(rank, processes, ends[0], parent, run);
    }
    if (pid < 0) {
      const int error = errno;
      end_all(children, SIGKILL);
      wait_for_all(std::move(children));
      throw Error(Code::kOverloaded, std::strerror(error)).operation("spawn");
    }
    close(ends[0]);
    children.push_back({pid, rank, ends[1]});
  }
  // Only now: a thread of the server's would not be copied, but its descriptors would.
  const auto server = dist::TcpStoreServer::start();
  const uint16_t port = server->port();
  for (const Child& child : children) {
    // Fails only when it has ended already; wait_for_all() says how.
    send(child.port_socket, &port, sizeof port, MSG_NOSIGNAL);
    close(child.port_socket);
  }
  if (auto failure = wait_for_all(std::move(children))) throw *failure;
}

}  // namespace farspan
