#include <farspan/c10d/store/rendezvous.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/address.h>
#include <farspan/c10d/store/file_store.h>
#include <farspan/c10d/store/server_rendezvous.h>
#include <farspan/c10d/store/server_url.h>
#include <farspan/c10d/store/tcp_store.h>

namespace farspan::dist {
namespace {

constexpr const char* kHowToLaunch =
    "on one host let farspan::spawn() start the workers; else set RANK, WORLD_SIZE, MASTER_ADDR "
    "and MASTER_PORT for each, as torchrun --no-python does, or the options rank, world_size and "
    "init_method";
constexpr const char* kHowToNumber =
    "give each worker the options rank and world_size, or ?rank=0&world_size=2 in the URL, or set "
    "RANK and WORLD_SIZE";
constexpr const char* kHowToMeet =
    "ranks on several hosts need MASTER_ADDR, an address of rank 0's host, and MASTER_PORT: "
    "mpirun -x MASTER_ADDR=.. -x MASTER_PORT=.., or export them before srun";

// Of a store of the caller's own no URL is read.
constexpr const char* kHowToNumberAtStore =
    "give each worker the options rank and world_size, or set RANK and WORLD_SIZE";

const char* how_to_number(const RendezvousUrl& url) {
  if (url.scheme.empty()) return kHowToNumberAtStore;
  return url.scheme == "env" ? kHowToLaunch : kHowToNumber;
}

Error refuse(const std::string& message, const std::string& advice) {
  Error error(Code::kInvalidArgument, message);
  error.advice(advice);
  return error;
}

int parse_number(const std::string& text, const std::string& name) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw refuse(name + " is '" + text.substr(0, 40) + "', which is no number", kHowToLaunch);
  }
  return number;
}

std::optional<GivenNumber> find_number(int option, const RendezvousUrl& url, const char* key,
                                       const std::optional<std::string>& variable,
                                       const std::string& variable_name) {
  if (option != -1) return GivenNumber{option, key};
  if (const auto it = url.query.find(key); it != url.query.end()) {
    const std::string where = std::string(key) + " in the URL";
    return GivenNumber{parse_number(it->second, where), where};
  }
  if (!variable) return std::nullopt;
  return GivenNumber{parse_number(*variable, variable_name), variable_name};
}

// A name that stands for this host's loopback only (Debian writes 127.0.1.1 for the host's own
// name) keeps workers of other hosts out.
void warn_of_loopback(const net::HostPort& where, const TcpStore& store, const Membership& member,
                      const LaunchEnvironment& environment) {
  if (!environment.local_world_size || where.host == "localhost") return;
  if (parse_number(*environment.local_world_size, "LOCAL_WORLD_SIZE") >= member.world_size) return;
  const auto addresses = net::resolve(store.where(), Deadline::after(std::chrono::seconds(5)));
  if (std::all_of(addresses.begin(), addresses.end(),
                  [](const net::SocketAddress& address) { return address.is_loopback(); })) {
    log(LogLevel::kWarning, "store",
        "'" + where.host + "' is " + addresses.front().to_string() +
            " here, which workers on other hosts cannot reach; name this host's IP address "
            "(MASTER_ADDR, or the URL), or correct /etc/hosts");
  }
}

bool in_server(const RendezvousUrl& url) { return url.scheme == "redis" || url.scheme == "etcd"; }

bool agent_hosts(const net::HostPort& where, const LaunchEnvironment& environment) {
  return environment.agent_hosts_store && environment.master_addr == where.host &&
         environment.master_port == std::to_string(where.port);
}

// A misspelt name would be noticed much later, or never.
void check_query(const RendezvousUrl& url) {
  for (const auto& [name, value] : url.query) {
    // PyTorch's own option; farspan knows no other way.
    if (name == "rank" || name == "world_size" || name == "use_libuv") continue;
    if (name == "prefix" && in_server(url)) continue;
    throw refuse("'" + name.substr(0, 100) + "' in the URL is not known",
                 in_server(url) ? "use rank, world_size and prefix" : "use rank and world_size");
  }
}

Rendezvous meet_by_tcp(const net::HostPort& where, const RendezvousUrl& url,
                       const RendezvousOptions& options) {
  check_query(url);
  const Membership member = membership_of(url, options);
  if (where.port == 0 && member.world_size > 1) {
    throw refuse("port 0 is a different one in every worker",
                 "give the port of rank 0's store, the same to all workers");
  }
  TcpStoreOptions store;
  store.host = where.host;
  store.port = where.port;
  store.is_server = member.rank == 0 && !agent_hosts(where, options.environment);
  store.bind_host = options.bind_host;
  store.world_size = member.world_size;
  store.wait_for_workers = options.wait_for_workers;
  store.timeout = options.timeout;
  auto joined = std::make_shared<TcpStore>(store);
  if (joined->server()) warn_of_loopback(where, *joined, member, options.environment);
  return {std::move(joined), member.rank, member.world_size};
}

// A folder of this user's alone, for files that the processes of a host meet in.
std::string private_folder() {
  const std::string path =
      std::filesystem::temp_directory_path().string() + "/farspan-" + std::to_string(geteuid());
  struct stat found {};
  if ((mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) && lstat(path.c_str(), &found) == 0 &&
      S_ISDIR(found.st_mode) && found.st_uid == geteuid() && (found.st_mode & 0077) == 0) {
    return path;
  }
  Error error(Code::kUnavailable, "'" + path + "' is no folder of this user's alone");
  throw error.advice("remove it, or set TMPDIR, MASTER_ADDR or an init_method");
}

// Ranks that mpirun or srun has started on one host, and told nothing of a place to meet.
Rendezvous meet_on_host(const RendezvousUrl& url, const RendezvousOptions& options) {
  const Membership member = membership_of(url, options);
  const std::string path = private_folder() + "/" + *options.environment.job;
  return {std::make_shared<FileStore>(path, member.world_size, options.timeout), member.rank,
          member.world_size};
}

Rendezvous meet_by_env(const RendezvousUrl& url, const RendezvousOptions& options) {
  if (!url.place.empty()) throw refuse("env:// is followed by no place", "write env://");
  check_query(url);
  const Membership member = membership_of(url, options);  // says first what is missed most often
  const LaunchEnvironment& environment = options.environment;
  if (environment.job && !environment.master_addr) {
    if (environment.local_world_size == std::to_string(member.world_size)) {
      return meet_on_host(url, options);
    }
    throw refuse("MASTER_ADDR is not set", kHowToMeet);
  }
  if (!environment.master_addr) throw refuse("MASTER_ADDR is not set", kHowToLaunch);
  if (!environment.master_port) throw refuse("MASTER_PORT is not set", kHowToLaunch);
  const uint16_t port = net::parse_port(*environment.master_port, "MASTER_PORT");
  return meet_by_tcp({*environment.master_addr, port}, url, options);
}

Rendezvous meet_by_file(const RendezvousUrl& url, const RendezvousOptions& options) {
  if (!url.place.starts_with('/') || url.place == "/") {
    throw refuse("'file://" + url.place + "' has no absolute path", "write file:///path/of/a/file");
  }
  check_query(url);
  const Membership member = membership_of(url, options);
  return {std::make_shared<FileStore>(url.place, member.world_size, options.timeout), member.rank,
          member.world_size};
}

Rendezvous meet_in_server(const RendezvousUrl& url, const RendezvousOptions& options) {
  server_place(url, {});  // first: an error of the query may show a part of a mistyped password
  check_query(url);
  const Membership member = membership_of(url, options);
  auto store = url.scheme == "redis" ? join_redis(url, options) : join_etcd(url, options);
  return {std::move(store), member.rank, member.world_size};
}

struct Handlers {
  Mutex mutex;
  std::map<std::string, RendezvousHandler> by_scheme FARSPAN_GUARDED_BY(mutex);
};

// What is known of schemes belongs to the program, as its functions do.
Handlers& handlers() {
  static Handlers& all =
      *new Handlers{{},
                    {{"env", meet_by_env},
                     {"tcp",
                      [](const RendezvousUrl& url, const RendezvousOptions& options) {
                        return meet_by_tcp(net::parse_host_port(url.place), url, options);
                      }},
                     {"file", meet_by_file},
                     {"redis", meet_in_server},
                     {"etcd", meet_in_server}}};
  return all;
}

}  // namespace

RendezvousUrl parse_rendezvous_url(const std::string& url) {
  RendezvousUrl parts;
  parts.scheme = scheme_of(url);
  if (parts.scheme.empty()) {
    throw refuse(
        "'" + without_password(url).substr(0, 200) + "' is no URL",
        "write env://, tcp://host:port, file:///path, redis://host:port or etcd://host:port");
  }
  std::string_view rest = std::string_view(url).substr(parts.scheme.size() + 3);
  const bool in_process = parts.scheme == "tcp" || parts.scheme == "env";
  if (in_process && rest.find('@') != std::string_view::npos) {
    throw refuse(parts.scheme + ":// takes no user or password, so no '@'",
                 "write redis:// or etcd:// for a store in such a server");
  }
  // A user's password may have a '?'.
  const size_t user = in_server(parts) ? rest.rfind('@') : std::string_view::npos;
  const size_t query = rest.find('?', user == std::string_view::npos ? 0 : user);
  parts.place = rest.substr(0, query);
  // tcp://host:port/ is the same place.
  if (parts.scheme != "file" && parts.place.ends_with('/')) parts.place.pop_back();
  if (query == std::string_view::npos) return parts;
  rest.remove_prefix(query + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      // It may be a part of a password that was mistyped.
      const bool shown = in_process || parts.scheme == "file";
      throw refuse(
          (shown ? "'" + std::string(pair.substr(0, 100)) + "'" : std::string("something")) +
              " in the URL is not name=value",
          "write ?rank=0&world_size=2");
    }
    parts.query[std::string(pair.substr(0, equals))] = pair.substr(equals + 1);
  }
  return parts;
}

GivenMembership given_membership(const RendezvousUrl& url, const RendezvousOptions& options) {
  const LaunchEnvironment& environment = options.environment;
  return {find_number(options.rank, url, "rank", environment.rank, environment.rank_variable),
          find_number(options.world_size, url, "world_size", environment.world_size,
                      environment.world_size_variable)};
}

Membership membership_of(const RendezvousUrl& url, const RendezvousOptions& options) {
  const auto [rank, size] = given_membership(url, options);
  const auto missing = [&](const std::string& variable) {
    return refuse(variable + " is not set", how_to_number(url));
  };
  if (!rank) throw missing(options.environment.rank_variable);
  if (!size) throw missing(options.environment.world_size_variable);
  if (size->number < 1) {
    throw refuse(
        size->where + " is " + std::to_string(size->number) + ", there is at least 1 worker",
        "give the number of all workers, this one included");
  }
  if (rank->number < 0 || rank->number >= size->number) {
    throw refuse(rank->where + " is " + std::to_string(rank->number) + ", with " + size->where +
                     " " + std::to_string(size->number) + " it must be 0 to " +
                     std::to_string(size->number - 1),
                 "give each worker a number of its own, from 0");
  }
  return {rank->number, size->number};
}

Rendezvous rendezvous(const std::string& url, const RendezvousOptions& options) {
  const TimePoint start = Clock::now();
  try {
    if (options.store) {
      const Membership member = membership_of({}, options);
      return {options.store, member.rank, member.world_size};
    }
    const RendezvousUrl parts = parse_rendezvous_url(url);
    RendezvousHandler handler;
    {
      Handlers& known = handlers();
      MutexLock lock(known.mutex);
      const auto it = known.by_scheme.find(parts.scheme);
      if (it == known.by_scheme.end()) {
        std::string schemes;
        for (const auto& [scheme, unused] : known.by_scheme) schemes += " " + scheme + "://";
        throw refuse("nobody here knows " + parts.scheme + "://", "use one of" + schemes);
      }
      handler = it->second;
    }
    return handler(parts, options);
  } catch (Error& error) {
    if (error.operation().empty()) {
      error.operation("rendezvous " + without_password(url).substr(0, 200))
          .elapsed(Clock::now() - start);
    }
    throw;
  }
}

void register_rendezvous(const std::string& scheme, RendezvousHandler handler) {
  Handlers& known = handlers();
  MutexLock lock(known.mutex);
  if (!known.by_scheme.emplace(scheme, std::move(handler)).second) {
    throw Error(Code::kAlreadyExists, scheme + ":// has a handler already")
        .operation("register_rendezvous");
  }
}

}  // namespace farspan::dist
