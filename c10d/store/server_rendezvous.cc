#include <farspan/c10d/store/server_rendezvous.h>

#include <charconv>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/store/server_url.h>

#if FARSPAN_HAS_REDIS
#include <farspan/c10d/store/redis_store.h>
#endif
#if FARSPAN_HAS_ETCD
#include <farspan/c10d/store/etcd_store.h>
#endif

namespace farspan::dist {
namespace {

// As RedisStoreOptions and EtcdStoreOptions, where the URL says nothing.
[[maybe_unused]] std::string prefix_of(const RendezvousUrl& url) {
  const auto it = url.query.find("prefix");
  return it == url.query.end() ? "default" : it->second;
}

[[maybe_unused]] Error not_built(const std::string& library, const std::string& packages) {
  return Error(Code::kInvalidArgument, "farspan was built without " + library)
      .advice("install " + packages + " and build farspan again, or meet by tcp://host:port");
}

}  // namespace

#if FARSPAN_HAS_REDIS
std::shared_ptr<Store> join_redis(const RendezvousUrl& url, const RendezvousOptions& options) {
  ServerPlace place = server_place(url, options.environment);
  RedisStoreOptions store;
  const char* end = place.path.data() + place.path.size();
  const auto [read, error] = std::from_chars(place.path.data(), end, store.db);
  if (!place.path.empty() && (error != std::errc() || read != end || store.db < 0)) {
    throw Error(Code::kInvalidArgument,
                "what follows host:port/ in the URL is no number of a database")
        .advice("write redis://host:port/0");
  }
  store.host = place.where.host;
  store.port = place.where.port;
  store.user = std::move(place.user);
  store.password = std::move(place.password);
  store.prefix = prefix_of(url);
  store.timeout = options.timeout;
  return std::make_shared<RedisStore>(std::move(store));
}
#else
std::shared_ptr<Store> join_redis(const RendezvousUrl&, const RendezvousOptions&) {
  throw not_built("hiredis", "libhiredis-dev");
}
#endif

#if FARSPAN_HAS_ETCD
std::shared_ptr<Store> join_etcd(const RendezvousUrl& url, const RendezvousOptions& options) {
  ServerPlace place = server_place(url, options.environment);
  if (!place.path.empty()) {
    throw Error(Code::kInvalidArgument, "etcd://host:port is followed by no path")
        .advice("write etcd://host:port?prefix=job");
  }
  EtcdStoreOptions store;
  store.host = place.where.host;
  store.port = place.where.port;
  store.user = std::move(place.user);
  store.password = std::move(place.password);
  store.prefix = prefix_of(url);
  store.timeout = options.timeout;
  return std::make_shared<EtcdStore>(std::move(store));
}
#else
std::shared_ptr<Store> join_etcd(const RendezvousUrl&, const RendezvousOptions&) {
  throw not_built("libcurl and nlohmann-json", "libcurl4-openssl-dev and nlohmann-json3-dev");
}
#endif

}  // namespace farspan::dist
