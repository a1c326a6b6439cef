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

std::shared_ptr<Backend> make_backend(const std::string& name, const BackendContext& context) {
  MakeBackend make;
  std::string names;
  {
    Known& all = known();
    MutexLock lock(all.mutex);
    const auto found = all.backends.find(name);
    if (found != all.backends.end()) make = found->second;
    for (const auto& [one, unused] : all.backends) names += (names.empty() ? "" : ", ") + one;
  }
  if (make) return make(context);
  throw Error(Code::kInvalidArgument, "there is no backend '" + name + "'")
      .operation("init_process_group")
      .advice("take one of: " + names);
}

}  // namespace farspan::dist
