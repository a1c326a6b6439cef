#include <farspan/c10d/group/backend.h>

#include <map>
#include <utility>

#include <farspan/c10d/base/mutex.h>

namespace farspan::dist {
namespace {

struct Known {
  Mutex mutex;
  std::map<std::string, MakeBackend> backends FARSPAN_GUARDED_BY(mutex);
};

Known& known() {
  static Known the_known;
  return the_known;
}

}  // namespace

void register_backend(const std::string& name, MakeBackend make) {
  Known& all = known();
  MutexLock lock(all.mutex);
  if (all.backends.emplace(name, std::move(make)).second) return;
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
      .operation("init_process_group")
      .advice("take one of: " + names);
}

std::shared_ptr<Backend> make_backend(const std::string& name, const BackendContext& context) {
  check_backend(name);
  MakeBackend make;
  {
    Known& all = known();
    MutexLock lock(all.mutex);
    make = all.backends.at(name);
  }
  return make(context);
}

}  // namespace farspan::dist
