#include <farspan/c10d/group/backend.h>

#include <map>
#include <utility>

#include <farspan/c10d/base/fnv1a.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::dist {
namespace {

struct Kind {
  MakeBackend make;
  MeetRanks meet;
};

struct Known {
  Mutex mutex;
  std::map<std::string, Kind> backends FARSPAN_GUARDED_BY(mutex);
};

Known& known() {
  static Known the_known;
  return the_known;
}

Kind kind_of(const std::string& name) {
  check_backend(name);
  Known& all = known();
  MutexLock lock(all.mutex);
  return all.backends.at(name);
}

}  // namespace

uint64_t GroupSpec::id() const noexcept { return Fnv1a().add_text(name).value(); }

void register_backend(const std::string& name, MakeBackend make, MeetRanks meet) {
  Known& all = known();
  MutexLock lock(all.mutex);
  if (all.backends.try_emplace(name, Kind{std::move(make), std::move(meet)}).second) return;
  throw Error(Code::kAlreadyExists, "there is a backend '" + name + "' already")
      .operation("register_backend");
}

void check_backend(const std::string& name) {
  Known& all = known();
  MutexLock lock(all.mutex);
  if (all.backends.contains(name)) return;
  std::string names;
  for (const auto& [one, unused] : all.backends) names += (names.empty() ? "" : ", ") + one;
  throw Error(Code::kInvalidArgument, "there is no backend '" + name + "'")
      .advice("take one of: " + names);
}

MeetRanks meeting_of_backend(const std::string& name) { return kind_of(name).meet; }

std::shared_ptr<Backend> make_backend(const std::string& name, const BackendContext& context) {
  return kind_of(name).make(context);
}

}  // namespace farspan::dist
