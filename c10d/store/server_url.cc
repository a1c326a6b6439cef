#include <farspan/c10d/store/server_url.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::dist {
namespace {

constexpr size_t kMaxPrefixBytes = 200;
constexpr size_t kMaxPasswordFileBytes = 4096;

Error refuse(const std::string& message, const std::string& advice) {
  return Error(Code::kInvalidArgument, message).advice(advice);
}

// "a%2Fb" is a/b.
std::string decoded(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    unsigned byte = 0;
    const char* digits = text.data() + i + 1;
    if (i + 2 >= text.size() || std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) {
      throw refuse("'%' in the URL's user or password begins no byte, as in %2F",
                   "write %25 for '%' itself");
    }
    result += static_cast<char>(byte);
    i += 2;
  }
  return result;
}

// Of a regular file: who reads from a pipe may wait for ever.
std::string first_line(const std::string& path) {
  const auto unreadable = [&](const std::string& why) {
    return refuse("no password can be read from '" + path + "': " + why,
                  "correct FARSPAN_STORE_PASSWORD_FILE, or who may read the file");
  };
  const net::OwnedDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw unreadable(std::strerror(errno));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) throw unreadable("it is no file");
  std::array<char, kMaxPasswordFileBytes + 1> bytes;
  const ssize_t size = ::read(fd.get(), bytes.data(), bytes.size());
  if (size < 0) throw unreadable(std::strerror(errno));
  if (static_cast<size_t>(size) > kMaxPasswordFileBytes) throw unreadable("it has over 4 KiB");
  std::string line(bytes.data(), static_cast<size_t>(size));
  line.resize(std::min(line.find('\n'), line.size()));
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line.empty()) throw unreadable("its first line is empty");
  return line;
}

// What stands before the host, and what may be a part of it, is not shown.
net::HostPort host_port(std::string_view text, const std::string& scheme) {
  try {
    return net::parse_host_port(text);
  } catch (const Error&) {
    throw refuse("the URL names no host:port",
                 "write " + scheme + "://host:port or " + scheme + "://user:password@host:port");
  }
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "host:port" and "host:port/0" as they are; what is not surely this, as "...".
std::string shown_place(std::string_view text) {
  const std::string_view place = text.substr(0, text.find('/'));
  try {
    net::parse_host_port(place);
  } catch (const Error&) {
    return "...";
  }
  if (place.size() == text.size() || is_number(text.substr(place.size() + 1))) {
    return std::string(text);
  }
  return std::string(place) + "/...";
}

}  // namespace

ServerPlace server_place(const RendezvousUrl& url, const LaunchEnvironment& environment) {
  ServerPlace place;
  std::optional<std::string> password;
  std::string_view rest = url.place;
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    const std::string_view who = rest.substr(0, at);
    const size_t colon = who.find(':');
    place.user = decoded(who.substr(0, colon));
    if (colon != std::string_view::npos) password = decoded(who.substr(colon + 1));
    rest.remove_prefix(at + 1);
  }
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    place.path = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
  }
  place.where = host_port(rest, url.scheme);
  if (place.where.port == 0) {
    throw refuse("port 0 is no server's", "write " + url.scheme + "://host:port");
  }
  if (!password) password = environment.store_password;
  if (!password && environment.store_password_file) {
    password = first_line(*environment.store_password_file);
  }
  place.password = password.value_or("");
  return place;
}

std::string names_of_job(const std::string& prefix) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-' || c == '/';
  };
  if (prefix.empty() || prefix.size() > kMaxPrefixBytes ||
      !std::all_of(prefix.begin(), prefix.end(), allowed)) {
    throw refuse("'" + prefix.substr(0, 40) + "' cannot be the prefix of a job's keys",
                 "use 1 to 200 letters, digits, '.', '_', '-' or '/'");
  }
  return "farspan:" + prefix + ":";
}

std::string scheme_of(const std::string& url) {
  const size_t end = url.find("://");
  if (end == std::string::npos || end == 0) return {};
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto allowed = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
  };
  const std::string scheme = url.substr(0, end);
  const bool good = is_letter(scheme[0]) && std::all_of(scheme.begin(), scheme.end(), allowed);
  return good ? scheme : "";
}

std::string without_password(const std::string& url) {
  const std::string scheme = scheme_of(url);
  if (scheme.empty()) {
    const size_t mark = url.find_first_of(":@");
    if (mark == std::string::npos) return url;
    return url[mark] == '@' ? "..." : url.substr(0, mark) + ":...";
  }
  const size_t at = url.rfind('@');
  const bool has_at = at != std::string::npos;
  if (scheme == "file" || (!has_at && (scheme == "env" || scheme == "tcp"))) return url;
  const size_t begin = has_at ? at + 1 : scheme.size() + 3;
  const size_t query = std::min(url.find('?', begin), url.size());
  return scheme + "://" + (has_at ? "...@" : "") +
         shown_place(std::string_view(url).substr(begin, query - begin)) +
         (query < url.size() ? "?..." : "");
}

}  // namespace farspan::dist
