// Dropout by Philox 4x32-10 (Salmon et al. 2011): it depends only on (seed, site, row, column), so there is no
// generator state to keep.
#pragma once
#include "basics.h"

namespace {

struct Dropout {
  uint32_t seed, site;
  float rate;

  bool drops() const { return rate > 0; }
  float upscale() const { return 1.0f / (1.0f - rate); }
  uint16_t least() const { return (uint16_t)(rate * 65536.0f + 0.5f); }
};

ALWAYS int64_t words_of_bits(int64_t count) { return (count + 31) / 32; }

// Fill `bits`, `count` words of one row: 1 is kept. Sixteen counters give four words, 128 columns.
inline void draw_bits(const Dropout &dropout, uint32_t row, int64_t count, uint32_t *bits) {
  const uint16_t least = dropout.least();
  for (int64_t start = 0; start < count; start += 4) {
    Words counter[4] = {fill_words(row), count_from((uint32_t)(start / 4 * 16)), fill_words(dropout.site), fill_words(0)};
    uint32_t key[2] = {dropout.seed, 0x1BD11BDAu};
    for (int round = 0; round < 10; round++) {
      Words high[2], low[2];
      multiply(counter[0], 0xD2511F53u, high[0], low[0]);
      multiply(counter[2], 0xCD9E8D57u, high[1], low[1]);
      counter[0] = high[1] ^ counter[1] ^ fill_words(key[0]);
      counter[1] = low[1];
      counter[2] = high[0] ^ counter[3] ^ fill_words(key[1]);
      counter[3] = low[0];
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    for (int word = 0; word < 4 && start + word < count; word++)
      bits[start + word] = halves_at_least(counter[word], least);
  }
}

ALWAYS uint32_t bits_at(const uint32_t *bits, int64_t column) { return bits[column >> 5] >> (column & 16); }

// Dropout of sixteen values of a row. bits NULL: keeps all of them.
ALWAYS Lanes drop(Lanes values, const uint32_t *bits, int64_t column, float upscale) {
  return bits ? keep(mask_of(bits_at(bits, column) & 0xffff), values * fill(upscale)) : values;
}

}  // namespace
