// One product of float32 arrays over all threads; its factors can be rounded to bfloat16 first.
#pragma once
#include <omp.h>

#include "kernels.h"
#ifdef FUSED_TILES
#include "tile_packing.h"
#else
#include "basics.h"
#endif

namespace {

constexpr int64_t TILE_ROWS = 256, TILE_COLUMNS = 1024;

inline int64_t columns_of_tiles(const Dense &of) { return (of.n + TILE_COLUMNS - 1) / TILE_COLUMNS; }
inline int64_t tiles_of(const Dense &of) { return (of.m + TILE_ROWS - 1) / TILE_ROWS * columns_of_tiles(of); }

// A tile of the result, for one thread.
struct Tile {
  int64_t row, column, rows, columns;

  Tile(const Dense &of, int64_t number)
      : row(number / columns_of_tiles(of) * TILE_ROWS), column(number % columns_of_tiles(of) * TILE_COLUMNS),
        rows(of.m - row < TILE_ROWS ? of.m - row : TILE_ROWS),
        columns(of.n - column < TILE_COLUMNS ? of.n - column : TILE_COLUMNS) {}
};

// In a parallel region.
template <class T>
inline void multiply_tiles(const Dense &of, const T *a, const T *b, float *c) {
#pragma omp for schedule(static, 1)
  for (int64_t tile = 0; tile < tiles_of(of); tile++) {
    const Tile at(of, tile);
    product(at.rows, at.columns, of.k, a + at.row * of.k, of.k, b + at.column, of.n, false, c + at.row * of.n + at.column,
            of.n);
  }
}

inline void dense_of_float(const Dense &of, const float *a, const float *b, void *, float *c) {
#pragma omp parallel num_threads(of.threads)
  {
    const TinyIsZero tiny_is_zero;
    omp_set_num_threads(1);
    multiply_tiles(of, a, b, c);
  }
}

#ifdef FUSED_HALF
inline void convert_in_parallel(const float *from, int64_t count, Half *to) {
  constexpr int64_t PART = 1 << 14;
#pragma omp for schedule(static)
  for (int64_t start = 0; start < count; start += PART)
    convert(from + start, count - start < PART ? count - start : PART, to + start);
}

#ifdef FUSED_TILES
inline int64_t right_halves(const Dense &of) { return packed_halves(of.k, of.n); }

// In a parallel region, like the other two.
inline void narrow_right(const Dense &of, const float *b, Half *to) {
#pragma omp for schedule(static)
  for (int64_t j = 0; j < of.n; j += PANEL) pack_panel(b, of.n, of.k, of.n, j, to + j / PANEL * panel_halves(of.k));
}

inline void multiply_narrow(const Dense &of, const Half *a, const Half *b, float *c) {
#pragma omp for schedule(static, 1)
  for (int64_t tile = 0; tile < tiles_of(of); tile++) {
    const Tile at(of, tile);
    multiply_packed(at.rows, at.columns, of.k, a + at.row * of.k, of.k, b + at.column / PANEL * panel_halves(of.k), false,
                    c + at.row * of.n + at.column, of.n);
  }
}
#else
inline int64_t right_halves(const Dense &of) { return of.k * of.n; }
inline void narrow_right(const Dense &of, const float *b, Half *to) { convert_in_parallel(b, of.k * of.n, to); }
inline void multiply_narrow(const Dense &of, const Half *a, const Half *b, float *c) { multiply_tiles(of, a, b, c); }
#endif

struct NarrowFactors {
  Half *a, *b;
  size_t bytes;

  NarrowFactors(const Dense &of, void *base) {
    Space space(base);
    a = space.take<Half>(of.m * of.k);
    b = space.take<Half>(right_halves(of));
    bytes = space.bytes();
  }
};

inline size_t dense_work_bytes(const Dense &of) { return NarrowFactors(of, nullptr).bytes; }

inline void dense_of_half(const Dense &of, const float *a, const float *b, void *work, float *c) {
  const NarrowFactors narrow(of, work);
#pragma omp parallel num_threads(of.threads)
  {
    const TinyIsZero tiny_is_zero;
    omp_set_num_threads(1);
    convert_in_parallel(a, of.m * of.k, narrow.a);
    narrow_right(of, b, narrow.b);
    multiply_narrow(of, narrow.a, narrow.b, c);
  }
}
#endif

}  // namespace
