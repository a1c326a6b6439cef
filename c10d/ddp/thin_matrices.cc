// Compiled without fused multiply-adds, see CMakeLists.txt: each operation is rounded by itself, as
// it is everywhere. The order of additions is that of the code.
#include <farspan/c10d/ddp/thin_matrices.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace farspan::dist {
namespace {

constexpr int64_t kLanes = 8;       // partial sums, so that additions need not wait for each other
constexpr double kNothing = 1e-24;  // of the square of a length: what rounding leaves over
constexpr int64_t kColumnsAtOnce = 4;

double dot(const double* a, const double* b, int64_t n) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sums[i % kLanes] += a[i] * b[i];
  double sum = 0;
  for (const double one : sums) sum += one;
  return sum;
}

// Columns one after the other, each of n numbers.
class Columns {
 public:
  Columns(int64_t n, int64_t r) : n_(n), numbers_(static_cast<size_t>(n * r)) {}

  double* operator[](int64_t column) { return numbers_.data() + column * n_; }

  // Orthogonal to all before it, of length 1.
  void orthogonalize(int64_t column) {
    double* const own = (*this)[column];
    const double before = dot(own, own, n_);
    double left = take_away_others(column);
    if (left <= kNothing * before) {
      replace(column);
      left = take_away_others(column);
    }
    const double length = std::sqrt(left);
    for (int64_t i = 0; i < n_; ++i) own[i] /= length;
  }

 private:
  // Twice, since the first time leaves what was rounded off large numbers.
  //   returns  the square of the length of what is left
  double take_away_others(int64_t column) {
    double* const own = (*this)[column];
    for (int time = 0; time < 2; ++time) {
      for (int64_t other = 0; other < column; ++other) {
        const double* const its = (*this)[other];
        const double part = dot(its, own, n_);
        for (int64_t i = 0; i < n_; ++i) own[i] -= part * its[i];
      }
    }
    return dot(own, own, n_);
  }

  // By numbers of no pattern, which the standard fixes: along an axis, say, a gradient may have
  // nothing at all.
  void replace(int64_t column) {
    std::minstd_rand numbers(static_cast<std::minstd_rand::result_type>(column + 1));
    constexpr double kMiddle = std::minstd_rand::max() / 2.0;
    double* const own = (*this)[column];
    for (int64_t i = 0; i < n_; ++i) own[i] = static_cast<double>(numbers()) / kMiddle - 1;
  }

  const int64_t n_;
  std::vector<double> numbers_;
};

// row [m] = p [r] times q [r, m], added from the first row of q to the last.
template <class T>
void multiply_row(const T* p, const T* q, T* __restrict row, int64_t r, int64_t m) {
  std::fill_n(row, m, T(0));
  int64_t k = 0;
  for (; k + kColumnsAtOnce <= r; k += kColumnsAtOnce) {
    const T p0 = p[k], p1 = p[k + 1], p2 = p[k + 2], p3 = p[k + 3];
    const T *const q0 = q + k * m, *const q1 = q0 + m, *const q2 = q1 + m, *const q3 = q2 + m;
    for (int64_t j = 0; j < m; ++j) {
      row[j] = row[j] + p0 * q0[j] + p1 * q1[j] + p2 * q2[j] + p3 * q3[j];
    }
  }
  for (; k < r; ++k) {
    for (int64_t j = 0; j < m; ++j) row[j] += p[k] * q[k * m + j];
  }
}

}  // namespace

template <class T>
void orthogonalize(T* matrix, int64_t n, int64_t r) {
  Columns columns(n, r);
  for (int64_t column = 0; column < r; ++column) {
    double* const own = columns[column];
    for (int64_t i = 0; i < n; ++i) own[i] = static_cast<double>(matrix[i * r + column]);
    columns.orthogonalize(column);
    for (int64_t i = 0; i < n; ++i) matrix[i * r + column] = static_cast<T>(own[i]);
  }
}

template <class T>
void multiply_thin(const T* p, const T* q, T* product, int64_t n, int64_t r, int64_t m) {
  for (int64_t i = 0; i < n; ++i) multiply_row(p + i * r, q, product + i * m, r, m);
}

template void orthogonalize(float*, int64_t, int64_t);
template void orthogonalize(double*, int64_t, int64_t);
template void multiply_thin(const float*, const float*, float*, int64_t, int64_t, int64_t);
template void multiply_thin(const double*, const double*, double*, int64_t, int64_t, int64_t);

}  // namespace farspan::dist
