// Products of bfloat16 on the tile registers of AMX: sixteen rows of 64 bytes each, sums in float32.
//
// A factor on the right is packed into tiles beforehand: panels of 32 columns, each of steps of 32 rows, each of two
// tiles of 16 columns; a row of a tile holds a pair of rows, which is how the processor reads it. Beyond the matrix
// there are zeros. Factors on the left are read as they are.
#pragma once
#include <string.h>

#include "basics.h"

namespace {

constexpr int64_t TILE = 16, STEP = 32, PANEL = 32;
constexpr int64_t TILE_HALVES = TILE * STEP;  // 1 KB

// The compiler's tile loads are not declared to read memory: what they read must have been written before this.
ALWAYS void settle_memory() { __asm__ volatile("" ::: "memory"); }

// The layout of the tile registers. Tiles 0 to 3: the sums, two by two; 4 and 5: the left factor; 6 and 7: the right one.
class TileSizes {
 public:
  // For sums of so many rows and columns, up to 32. It costs as much as some products, so it does nothing if unchanged.
  ALWAYS void use(int64_t rows, int64_t columns) {
    if (rows == rows_now && columns == columns_now) return;
    rows_now = rows;
    columns_now = columns;
    Config config = {};
    config.palette = 1;
    const int64_t height[2] = {rows < TILE ? rows : TILE, rows > TILE ? rows - TILE : 1};
    const int64_t width[2] = {columns < TILE ? columns : TILE, columns > TILE ? columns - TILE : 1};
    for (int i = 0; i < 2; i++) {
      for (int j = 0; j < 2; j++) config.set(2 * i + j, height[i], 4 * width[j]);
      config.set(4 + i, height[i], 2 * STEP);
      config.set(6 + i, STEP / 2, 4 * width[i]);
    }
    settle_memory();
    _tile_loadconfig(&config);
  }
  ~TileSizes() { _tile_release(); }

 private:
  struct alignas(64) Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t row_counts[16];
    void set(int tile, int64_t rows, int64_t bytes) {
      row_counts[tile] = (uint8_t)rows;
      row_bytes[tile] = (uint16_t)bytes;
    }
  };
  int64_t rows_now = 0, columns_now = 0;
};

// Up to 32 rows of a factor on the left.
struct LeftRows {
  const Half *at;
  int64_t row_step, column_step;  // between rows, and between blocks of 32 columns
  const Half *rest;               // [32, 32]: the last columns, then zeros, if they are not a whole step; NULL: they are
};

// c = a b, or c += a b, of up to 32 rows and columns; `steps`: the number of whole steps.
template <bool TWO_ROWS, bool TWO_COLUMNS>
ALWAYS void multiply_in_tiles(int64_t steps, const LeftRows &a, const Half *b, bool add, float *c, int64_t ldc) {
  const int64_t bytes = ldc * (int64_t)sizeof(float);
  settle_memory();
  if (add) {
    _tile_loadd(0, c, bytes);
    if (TWO_COLUMNS) _tile_loadd(1, c + TILE, bytes);
    if (TWO_ROWS) _tile_loadd(2, c + TILE * ldc, bytes);
    if (TWO_ROWS && TWO_COLUMNS) _tile_loadd(3, c + TILE * ldc + TILE, bytes);
  } else {
    _tile_zero(0);
    if (TWO_COLUMNS) _tile_zero(1);
    if (TWO_ROWS) _tile_zero(2);
    if (TWO_ROWS && TWO_COLUMNS) _tile_zero(3);
  }
  const int64_t all = steps + (a.rest ? 1 : 0);
  for (int64_t step = 0; step < all; step++) {
    const Half *from = step < steps ? a.at + step * a.column_step : a.rest;
    const int64_t row = step < steps ? a.row_step : STEP;
    _tile_loadd(4, from, row * 2);
    _tile_loadd(6, b, 2 * STEP);
    _tile_dpbf16ps(0, 4, 6);
    if (TWO_COLUMNS) {
      _tile_loadd(7, b + TILE_HALVES, 2 * STEP);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (TWO_ROWS) {
      _tile_loadd(5, from + TILE * row, row * 2);
      _tile_dpbf16ps(2, 5, 6);
      if (TWO_COLUMNS) _tile_dpbf16ps(3, 5, 7);
    }
    b += 2 * TILE_HALVES;
  }
  _tile_stored(0, c, bytes);
  if (TWO_COLUMNS) _tile_stored(1, c + TILE, bytes);
  if (TWO_ROWS) _tile_stored(2, c + TILE * ldc, bytes);
  if (TWO_ROWS && TWO_COLUMNS) _tile_stored(3, c + TILE * ldc + TILE, bytes);
}

ALWAYS void multiply_square(TileSizes &sizes, int64_t rows, int64_t columns, int64_t steps, const LeftRows &a,
                            const Half *b, bool add, float *c, int64_t ldc) {
  sizes.use(rows, columns);
  if (rows > TILE && columns > TILE)
    multiply_in_tiles<true, true>(steps, a, b, add, c, ldc);
  else if (rows > TILE)
    multiply_in_tiles<true, false>(steps, a, b, add, c, ldc);
  else if (columns > TILE)
    multiply_in_tiles<false, true>(steps, a, b, add, c, ldc);
  else
    multiply_in_tiles<false, false>(steps, a, b, add, c, ldc);
}

// Of one panel, and of all, of a factor on the right [depth, columns].
ALWAYS int64_t panel_halves(int64_t depth) { return round_up(depth, STEP) * PANEL; }
ALWAYS int64_t packed_halves(int64_t depth, int64_t columns) {
  return panel_halves(depth) * (round_up(columns, PANEL) / PANEL);
}

constexpr int64_t ROWS_AT_ONCE = 256;  // of the left factor: they stay in the cache while all panels use them

// c [m, n] = a b, or c += a b; a is [m, k], b in tiles.
inline void multiply_packed(int64_t m, int64_t n, int64_t k, const Half *a, int64_t lda, const Half *b, bool add, float *c,
                            int64_t ldc) {
  alignas(64) Half rests[ROWS_AT_ONCE * STEP];
  TileSizes sizes;
  const int64_t whole = k / STEP, rest = k % STEP;
  for (int64_t start = 0; start < m; start += ROWS_AT_ONCE) {
    const int64_t end = m - start < ROWS_AT_ONCE ? m : start + ROWS_AT_ONCE;
    for (int64_t i = start; rest && i < end; i++)
      _mm512_store_si512(rests + (i - start) * STEP,
                         _mm512_maskz_loadu_epi16((1u << rest) - 1, a + i * lda + whole * STEP));
    for (int64_t j = 0; j < n; j += PANEL)
      for (int64_t i = start; i < end; i += 2 * TILE)
        multiply_square(sizes, end - i < 2 * TILE ? end - i : 2 * TILE, n - j < PANEL ? n - j : PANEL, whole,
                        {a + i * lda, lda, STEP, rest ? rests + (i - start) * STEP : nullptr},
                        b + j / PANEL * panel_halves(k), add, c + i * ldc + j, ldc);
  }
}

}  // namespace
