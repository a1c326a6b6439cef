#include <farspan/c10d/backends/cpu/address.h>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include <farspan/c10d/net/host.h>

namespace farspan::dist::cpu {

Address Address::of_this_process(const std::string& host_id) {
  Address own;
  own.host = (host_id.empty() ? net::host_id() : host_id) + "/" + std::to_string(geteuid());
  for (char& letter : own.host) {
    if (std::isspace(static_cast<unsigned char>(letter))) letter = '_';  // see text()
  }
  own.process = net::process_name();
  own.tuning = Tuning::read();
  return own;
}

// One word each; a host's name has no blanks.
std::string Address::text() const {
  std::ostringstream out;
  out << "2 " << host << " " << process << " " << host_socket << " " << post.endpoint << " "
      << post.token << " " << tuning;
  return out.str();
}

Address Address::parse(const std::string& text) {
  std::istringstream in(text);
  int version = 0;
  Address address;
  in >> version >> address.host >> address.process >> address.host_socket >>
      address.post.endpoint >> address.post.token >> address.tuning;
  if (in && version == 2 && address.tuning.is_valid()) return address;
  throw Error(Code::kCorrupt, "the store has '" + text.substr(0, 100) + "' as a rank's address");
}

std::vector<std::string> exchange(Store& store, const std::string& what, int rank, int world_size,
                                  const std::string& own, Deadline deadline) {
  const auto key = [&](int one) { return what + "/" + std::to_string(one); };
  store.set(key(rank), own);
  std::vector<std::string> keys;
  for (int one = 0; one < world_size; ++one) keys.push_back(key(one));
  const Millis left = deadline.is_never()
                          ? kNoTimeout
                          : std::max(Millis(1), std::chrono::ceil<Millis>(deadline.remaining()));
  try {
    store.wait(keys, left);
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
    std::string missing;
    for (int one = 0; one < world_size; ++one) {
      if (!store.check({key(one)})) missing += (missing.empty() ? "" : ", ") + std::to_string(one);
    }
    throw Error(Code::kTimeout,
                "ranks " + missing + " of " + std::to_string(world_size) + " did not come")
        .advice("start them, or look at their errors");
  }
  return store.multi_get(keys);
}

}  // namespace farspan::dist::cpu
