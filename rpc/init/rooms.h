// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// furnish: puts the rooms above rpc into a worker. The one place that looks upward.
#pragma once

#include <farspan/rpc/worker.h>

namespace farspan {

// Before the worker's first call.
void furnish(Worker& worker);

}  // namespace farspan
