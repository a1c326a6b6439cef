#include <farspan/rpc/init/rooms.h>

#include <farspan/autograd/room.h>
#include <farspan/optim/room.h>
#include <farspan/rref/table.h>

namespace farspan {

void furnish(Worker& worker) {
  RRefTable::install(worker);
  dist_autograd::AutogradRoom::install(worker);
  optim::OptimRoom::install(worker);
}

}  // namespace farspan
