#define FARSPAN_PROCESSOR avx2
#include <farspan/c10d/backends/kernels/reduce_table.h>

namespace farspan::dist::kernels {
constinit const Table kAvx2 = avx2::make_table();
}
