// A job of one rank.
#pragma once

#include <farspan/c10d/init/init.h>
#include <farspan/c10d/store/hash_store.h>

#include <memory>

namespace farspan::testing {

inline dist::InitOptions alone() {
  dist::InitOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.store = std::make_shared<dist::HashStore>();
  return options;
}

}  // namespace farspan::testing
