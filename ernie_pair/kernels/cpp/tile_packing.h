// Packing factors into tiles; see tiles.h.
#pragma once
#include "tiles.h"

namespace {

// Up to sixteen numbers of a row as bfloat16, then zeros; only zeros if the row is not `there`.
ALWAYS __m256i sixteen(bool there, const float *from, int64_t count) {
  if (!there || count <= 0) return _mm256_setzero_si256();
  return narrowed(load(from, first(count)));
}
ALWAYS __m256i sixteen(bool there, const Half *from, int64_t count) {
  if (!there || count <= 0) return _mm256_setzero_si256();
  return _mm256_maskz_loadu_epi16(first(count).m, from);
}

// Two rows of sixteen, as pairs: a0 b0 a1 b1 ...
ALWAYS __m512i paired(__m256i a, __m256i b) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}

// One row of up to 32 as pairs of neighbours.
template <class T>
ALWAYS __m512i neighbours(bool there, const T *from, int64_t count) {
  const __m512i low = _mm512_castsi256_si512(sixteen(there, from, count));
  return _mm512_inserti64x4(low, sixteen(there, from + TILE, count - TILE), 1);
}

// Sixteen rows of sixteen 32-bit words become columns: first in groups of four rows, within each 128 bits, then across.
ALWAYS void turn_words(__m512i rows[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int half = 0; half < 2; half++) {
      rows[i + 2 * half] = _mm512_unpacklo_epi64(t[i + half], t[i + 2 + half]);
      rows[i + 2 * half + 1] = _mm512_unpackhi_epi64(t[i + half], t[i + 2 + half]);
    }
  for (int i = 0; i < 4; i++)
    for (int pair = 0; pair < 16; pair += 8) {
      t[pair + i] = _mm512_shuffle_i32x4(rows[pair + i], rows[pair + 4 + i], 0x88);
      t[pair + 4 + i] = _mm512_shuffle_i32x4(rows[pair + i], rows[pair + 4 + i], 0xdd);
    }
  for (int i = 0; i < 8; i++) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    rows[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
  }
}

// The panel of a right factor b [depth, columns] that begins at column j.
template <class T>
inline void pack_panel(const T *b, int64_t step, int64_t depth, int64_t columns, int64_t j, Half *to) {
  for (int64_t k = 0; k < depth; k += STEP)
    for (int64_t column = j; column < j + PANEL; column += TILE)
      for (int64_t row = k; row < k + STEP; row += 2, to += 2 * TILE)
        _mm512_storeu_si512(to, paired(sixteen(row < depth, b + row * step + column, columns - column),
                                       sixteen(row + 1 < depth, b + (row + 1) * step + column, columns - column)));
}

// The same for the transpose of w [columns, depth].
template <class T>
inline void pack_turned_panel(const T *w, int64_t step, int64_t depth, int64_t columns, int64_t j, Half *to) {
  for (int64_t k = 0; k < depth; k += STEP)
    for (int64_t column = j; column < j + PANEL; column += TILE) {
      __m512i words[16];
      for (int64_t i = 0; i < TILE; i++)
        words[i] = neighbours(column + i < columns, w + (column + i) * step + k, depth - k);
      turn_words(words);
      for (int64_t i = 0; i < TILE; i++, to += 2 * TILE) _mm512_storeu_si512(to, words[i]);
    }
}

// 32 rows of the left factor that is the transpose of a [depth, columns], from column j on, in tiles.
inline void pack_turned_rows(const Half *a, int64_t step, int64_t depth, int64_t columns, int64_t j, Half *to) {
  for (int64_t k = 0; k < depth; k += STEP)
    for (int64_t column = j; column < j + 2 * TILE; column += TILE) {
      __m512i words[16];
      for (int64_t i = 0; i < TILE; i++) {
        const int64_t row = k + 2 * i;
        words[i] = paired(sixteen(row < depth, a + row * step + column, columns - column),
                          sixteen(row + 1 < depth, a + (row + 1) * step + column, columns - column));
      }
      turn_words(words);
      for (int64_t i = 0; i < TILE; i++, to += STEP) _mm512_storeu_si512(to, words[i]);
    }
}

// All panels of a right factor.
template <class T>
inline void pack_right(const T *b, int64_t step, int64_t depth, int64_t columns, Half *to) {
  for (int64_t j = 0; j < columns; j += PANEL, to += panel_halves(depth)) pack_panel(b, step, depth, columns, j, to);
}
template <class T>
inline void pack_turned_right(const T *w, int64_t step, int64_t depth, int64_t columns, Half *to) {
  for (int64_t j = 0; j < columns; j += PANEL, to += panel_halves(depth)) pack_turned_panel(w, step, depth, columns, j, to);
}

constexpr int64_t MAX_DEPTH = 1024;  // of transposed products at once: both packed factors stay in the cache

ALWAYS int64_t depth_at_once(int64_t depth) { return depth < MAX_DEPTH ? depth : MAX_DEPTH; }
inline int64_t turned_work_halves(int64_t height, int64_t width, int64_t depth) {
  return packed_halves(depth_at_once(depth), height) + packed_halves(depth_at_once(depth), width);
}

// c [height, width] = the transposed a [depth, height] times b [depth, width].
inline void multiply_turned(int64_t height, int64_t width, int64_t depth, const Half *a, int64_t a_step, const Half *b,
                            int64_t b_step, float *c, int64_t c_step, Half *work) {
  Half *left = work, *right = work + packed_halves(depth_at_once(depth), height);
  for (int64_t start = 0; start == 0 || start < depth; start += MAX_DEPTH) {
    const int64_t rows = depth_at_once(depth - start), panel = panel_halves(rows);
    for (int64_t i = 0; i < height; i += 2 * TILE)
      pack_turned_rows(a + start * a_step, a_step, rows, height, i, left + i / (2 * TILE) * panel);
    pack_right(b + start * b_step, b_step, rows, width, right);
    TileSizes sizes;
    for (int64_t j = 0; j < width; j += PANEL)
      for (int64_t i = 0; i < height; i += 2 * TILE)
        multiply_square(sizes, height - i < 2 * TILE ? height - i : 2 * TILE, width - j < PANEL ? width - j : PANEL,
                        round_up(rows, STEP) / STEP, {left + i / (2 * TILE) * panel, STEP, 2 * TILE_HALVES, nullptr},
                        right + j / PANEL * panel, start > 0, c + i * c_step + j, c_step);
  }
}

}  // namespace
