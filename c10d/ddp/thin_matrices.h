// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Matrices of few columns, by arithmetic whose bits depend on the numbers alone: not on the
// processor or on BLAS. Ranks that begin with the same bits end with the same.
#pragma once

#include <cstdint>

namespace farspan::dist {

// Matrices lie in memory row by row. T is float or double.
//
// Threading: functions of their arguments.

// The columns of `matrix` [n, r], r <= n, become orthonormal, in place, and span what they did. One
// that lies in the span of those before it becomes an arbitrary other direction.
//   cost  4 n r^2 multiplications, in double
template <class T>
void orthogonalize(T* matrix, int64_t n, int64_t r);

// product [n, m] = p [n, r] times q [r, m].
//   cost  n m r multiplications
template <class T>
void multiply_thin(const T* p, const T* q, T* product, int64_t n, int64_t r, int64_t m);

}  // namespace farspan::dist
