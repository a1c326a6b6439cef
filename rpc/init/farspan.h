// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Everything. Include it as <farspan/farspan.h>.
#pragma once

#include <farspan/autograd/context.h>                    // IWYU pragma: export
#include <farspan/c10d/backends/fake/fake.h>             // IWYU pragma: export
#include <farspan/c10d/base/freed_memory.h>              // IWYU pragma: export
#include <farspan/c10d/ddp/distributed_data_parallel.h>  // IWYU pragma: export
#include <farspan/c10d/ddp/distributed_sampler.h>        // IWYU pragma: export
#include <farspan/c10d/ddp/power_sgd.h>                  // IWYU pragma: export
#include <farspan/c10d/group/collectives.h>              // IWYU pragma: export
#include <farspan/c10d/group/point_to_point.h>           // IWYU pragma: export
#include <farspan/c10d/group/subgroups.h>                // IWYU pragma: export
#include <farspan/c10d/group/values.h>                   // IWYU pragma: export
#include <farspan/c10d/init/init.h>                      // IWYU pragma: export
#include <farspan/c10d/init/record.h>                    // IWYU pragma: export
#include <farspan/optim/distributed_optimizer.h>         // IWYU pragma: export
#include <farspan/rpc/init/init.h>                       // IWYU pragma: export
#include <farspan/rpc/init/spawn.h>                      // IWYU pragma: export
#include <farspan/rpc/rpc.h>                             // IWYU pragma: export
#include <farspan/rref/remote.h>                         // IWYU pragma: export
#include <farspan/rref/rref.h>                           // IWYU pragma: export
