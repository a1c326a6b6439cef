// The rules under test: c10d/ddp/thin_matrices.h.
#include <farspan/c10d/ddp/thin_matrices.h>

#include <gtest/gtest.h>

#include <cmath>
#include <type_traits>
#include <vector>

namespace farspan::dist {
namespace {

template <class T>
std::vector<T> numbers(int64_t count, double seed) {
  std::vector<T> all;
  for (int64_t i = 0; i < count; ++i) {
    all.push_back(static_cast<T>(std::sin(0.37 * static_cast<double>(i) + seed)));
  }
  return all;
}

constexpr int64_t kRows = 13, kColumns = 3;
template <class T>
constexpr double kRounded = std::is_same_v<T, float> ? 1e-6 : 1e-14;

template <class T>
double dot(const std::vector<T>& a, int64_t i, const std::vector<T>& b, int64_t j) {
  double sum = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    sum += static_cast<double>(a[static_cast<size_t>(row * kColumns + i)]) *
           static_cast<double>(b[static_cast<size_t>(row * kColumns + j)]);
  }
  return sum;
}

// Orthonormal columns, outside of which nothing lies of those of `matrix`.
template <class T>
void expect_orthogonalized(std::vector<T> matrix) {
  const std::vector<T> before = matrix;
  orthogonalize(matrix.data(), kRows, kColumns);
  for (int64_t i = 0; i < kColumns; ++i) {
    double inside = 0;
    for (int64_t j = 0; j < kColumns; ++j) {
      EXPECT_NEAR(dot(matrix, i, matrix, j), i == j ? 1 : 0, kRounded<T>) << i << " " << j;
      inside += std::pow(dot(before, i, matrix, j), 2);
    }
    EXPECT_NEAR(inside, dot(before, i, before, i), 20 * kRounded<T>) << i;
  }
}

template <class T>
void orthogonalize_similar_columns() {
  std::vector<T> matrix = numbers<T>(kRows * kColumns, 1);
  for (size_t row = 0; row < static_cast<size_t>(kRows); ++row) {
    T* const its = &matrix[row * kColumns];
    its[1] = its[0] + T(1e-3) * its[1];  // most of it is taken away
  }
  expect_orthogonalized(matrix);
}

template <class T>
void orthogonalize_dependent_columns() {
  std::vector<T> matrix = numbers<T>(kRows * kColumns, 2);
  for (size_t row = 0; row < static_cast<size_t>(kRows); ++row) {
    T* const its = &matrix[row * kColumns];
    its[1] = 0;
    its[2] = 3 * its[0];
  }
  expect_orthogonalized(matrix);
  std::vector<T> zeros(9, 0);
  orthogonalize(zeros.data(), 3, 3);  // as many columns as rows
  for (const T one : zeros) EXPECT_FALSE(std::isnan(one));
}

template <class T>
void multiply(int64_t r) {
  constexpr int64_t kN = 3, kM = 21;
  const auto p = numbers<T>(kN * r, 3), q = numbers<T>(r * kM, 4);
  std::vector<T> product(kN * kM, T(7));
  multiply_thin(p.data(), q.data(), product.data(), kN, r, kM);
  for (int64_t i = 0; i < kN; ++i) {
    for (int64_t j = 0; j < kM; ++j) {
      T sum = 0;
      for (int64_t k = 0; k < r; ++k) {
        const volatile T one =
            p[static_cast<size_t>(i * r + k)] * q[static_cast<size_t>(k * kM + j)];
        sum += one;
      }
      EXPECT_EQ(product[static_cast<size_t>(i * kM + j)], sum) << r << ": " << i << " " << j;
    }
  }
}

TEST(ThinMatrix, BecomesOrthonormalAndSpansTheSame) {
  orthogonalize_similar_columns<float>();
  orthogonalize_similar_columns<double>();
}

TEST(ThinMatrix, GetsOtherDirectionsWhereItHasTooFew) {
  orthogonalize_dependent_columns<float>();
  orthogonalize_dependent_columns<double>();
}

TEST(ThinMatrix, IsMultipliedWithARoundingForEachOperation) {
  for (const int64_t r : {1, 3, 4, 9}) {
    multiply<float>(r);
    multiply<double>(r);
  }
}

}  // namespace
}  // namespace farspan::dist
