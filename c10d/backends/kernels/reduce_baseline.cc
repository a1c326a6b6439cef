#define FARSPAN_PROCESSOR baseline
#include <farspan/c10d/backends/kernels/reduce_table.h>

namespace farspan::dist::kernels {
constinit const Table kBaseline = baseline::make_table();
}
