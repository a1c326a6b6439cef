#include <farspan/rpc/init/rooms.h>

#include <farspan/rref/table.h>

namespace farspan {

void furnish(Worker& worker) { RRefTable::install(worker); }

}  // namespace farspan
