// Products that are too small for oneDNN: those of one head of one sequence. Six rows of the result are in registers.
#pragma once
#include "basics.h"

namespace {

// A factor whose element (row, column) is at row * row_step + column * column_step.
struct Factor {
  const float *at;
  int64_t row_step, column_step;
};

template <int ROWS, int VECTORS>
ALWAYS void multiply_tile(int64_t depth, Factor a, const float *b, int64_t ldb, bool add, float *c, int64_t ldc) {
  Lanes sums[ROWS][VECTORS];
  for (int i = 0; i < ROWS; i++)
    for (int v = 0; v < VECTORS; v++) sums[i][v] = add ? load(c + i * ldc + 16 * v, Whole()) : zero();
  for (int64_t k = 0; k < depth; k++) {
    Lanes row[VECTORS];
    for (int v = 0; v < VECTORS; v++) row[v] = load(b + k * ldb + 16 * v, Whole());
    for (int i = 0; i < ROWS; i++) {
      const Lanes factor = fill(a.at[i * a.row_step + k * a.column_step]);
      for (int v = 0; v < VECTORS; v++) sums[i][v] = add_product(factor, row[v], sums[i][v]);
    }
  }
  for (int i = 0; i < ROWS; i++)
    for (int v = 0; v < VECTORS; v++) store(c + i * ldc + 16 * v, Whole(), sums[i][v]);
}

template <int VECTORS>
inline void multiply_columns(int64_t m, int64_t depth, Factor a, const float *b, int64_t ldb, bool add, float *c,
                             int64_t ldc) {
  int64_t i = 0;
  for (; i + 6 <= m; i += 6, a.at += 6 * a.row_step) multiply_tile<6, VECTORS>(depth, a, b, ldb, add, c + i * ldc, ldc);
  for (; i + 2 <= m; i += 2, a.at += 2 * a.row_step) multiply_tile<2, VECTORS>(depth, a, b, ldb, add, c + i * ldc, ldc);
  if (i < m) multiply_tile<1, VECTORS>(depth, a, b, ldb, add, c + i * ldc, ldc);
}

// c [m, n] = a b, or c += a b; n is a multiple of 16, and the rows of b and c have room for it.
inline void multiply_small(int64_t m, int64_t n, int64_t depth, Factor a, const float *b, int64_t ldb, bool add,
                           float *c, int64_t ldc) {
  int64_t j = 0;
  for (; j + 16 * COLUMNS <= n; j += 16 * COLUMNS)
    multiply_columns<COLUMNS>(m, depth, a, b + j, ldb, add, c + j, ldc);
  for (; j + 32 <= n && COLUMNS > 2; j += 32) multiply_columns<2>(m, depth, a, b + j, ldb, add, c + j, ldc);
  for (; j < n; j += 16) multiply_columns<1>(m, depth, a, b + j, ldb, add, c + j, ldc);
}

}  // namespace
