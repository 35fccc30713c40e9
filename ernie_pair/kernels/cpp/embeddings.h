// Word, position and token type embeddings, their norm and dropout, forward and backward.
#pragma once
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "fused.h"
#include "norms.h"

namespace {

constexpr uint32_t EMBEDDING_SITE = 0xffff0000u;
constexpr int64_t NORM_ROWS = 256;  // of a block; the sums of gradients of the blocks are added in order

struct EmbeddingSaved {
  NormState norm;  // of all rows
  uint32_t *bits;
  size_t bytes;

  EmbeddingSaved(const fused_embedding &of, const void *base) {
    Space space(base);
    const int64_t rows = (int64_t)of.batch * of.length;
    norm = {space.take<float>(rows * of.hidden), space.take<float>(rows * 2)};
    bits = space.take<uint32_t>(rows * words_of_bits(of.hidden));
    bytes = space.bytes();
  }
};

struct EmbeddingInputs {
  const int64_t *ids, *types, *positions;
};

inline int64_t position_of(const fused_embedding &of, const EmbeddingInputs &in, int64_t row) {
  return in.positions ? in.positions[row] : row % of.length;
}

inline Dropout embedding_dropout(const fused_embedding &of) { return {of.seed, EMBEDDING_SITE, of.dropout}; }

inline void embedding_forward(const fused_embedding *of, const int64_t *ids, const int64_t *types,
                              const int64_t *positions, const float *words, const float *places, const float *kinds,
                              const float *task, const float *scale, const float *shift, void *saved_base, float *y) {
  const EmbeddingSaved saved(*of, saved_base);
  const EmbeddingInputs in = {ids, types, positions};
  const Dropout dropout = embedding_dropout(*of);
  const int64_t D = of->hidden, rows = (int64_t)of->batch * of->length, bit_words = words_of_bits(D);
  float *empty = (float *)calloc((size_t)D, sizeof(float));  // the row of the padding, whatever the table holds
  share_out(rows, of->threads, [&](int64_t row) {
    const float *word = ids[row] == of->padding_id ? empty : words + ids[row] * D;
    const float *kind = kinds + types[row] * D;
    float *to = y + row * D;
    sweep(D, [&](int64_t j, auto mask) {
      store(to + j, mask, task ? load(kind + j, mask) + load(task + j, mask) : load(kind + j, mask));
    });
    const Norm norm = {D, places + position_of(*of, in, row) * D, scale, shift, nullptr, 1.0f, of->epsilon};
    norm_forward<float>(norm, word, to, row_of(saved.norm, row, D), to, nullptr);
    if (!dropout.drops()) return;
    uint32_t *bits = saved.bits + row * bit_words;
    draw_bits(dropout, (uint32_t)row, bit_words, bits);
    sweep(D, [&](int64_t j, auto mask) { store(to + j, mask, drop(load(to + j, mask), bits, j, dropout.upscale())); });
  });
  free(empty);
}

inline size_t embedding_saved_bytes(const fused_embedding *of) { return EmbeddingSaved(*of, nullptr).bytes; }

struct EmbeddingGradients {
  float *words, *places, *kinds, *task, *scale, *shift;
};

// What the backward pass works on: the gradient of every row before the norm, and the sums of each block of rows.
struct EmbeddingWork {
  int64_t blocks;
  float *rows;               // [N, D]
  float *d_scale, *d_shift;  // [blocks, D]
  size_t bytes;

  EmbeddingWork(const fused_embedding &of, void *base) {
    Space space(base);
    const int64_t count = (int64_t)of.batch * of.length;
    blocks = (count + NORM_ROWS - 1) / NORM_ROWS;
    rows = space.take<float>(count * of.hidden);
    d_scale = space.take<float>(blocks * of.hidden);
    d_shift = space.take<float>(blocks * of.hidden);
    bytes = space.bytes();
  }
};

inline size_t embedding_work_bytes(const fused_embedding *of) { return EmbeddingWork(*of, nullptr).bytes; }

// The gradients of the rows before the norm. Call it in a parallel region.
inline void embedding_norm_backward(const fused_embedding &of, const EmbeddingSaved &saved, const float *scale,
                                    const float *dy, const EmbeddingWork &work) {
  const int64_t D = of.hidden, rows = (int64_t)of.batch * of.length, bit_words = words_of_bits(D);
  const Dropout dropout = embedding_dropout(of);
  const Norm norm = {D, nullptr, scale, nullptr, nullptr, 1.0f, of.epsilon};
#pragma omp for schedule(static, 1)
  for (int64_t block = 0; block < work.blocks; block++) {
    const NormGradients sums = {work.d_scale + block * D, work.d_shift + block * D, nullptr};
    memset(sums.scale, 0, (size_t)D * sizeof(float));
    memset(sums.shift, 0, (size_t)D * sizeof(float));
    const int64_t end = (block + 1) * NORM_ROWS < rows ? (block + 1) * NORM_ROWS : rows;
    for (int64_t row = block * NORM_ROWS; row < end; row++) {
      const uint32_t *bits = dropout.drops() ? saved.bits + row * bit_words : nullptr;
      float *to = work.rows + row * D;
      sweep(D, [&](int64_t j, auto mask) {
        store(to + j, mask, drop(load(dy + row * D + j, mask), bits, j, dropout.upscale()));
      });
      norm_backward<float>(norm, row_of(saved.norm, row, D), to, to, nullptr, sums);
    }
  }
}

// Sum the rows by word, position and type, for a part of the columns. In the order of the rows on any number of threads.
template <class M>
inline void scatter_columns(const fused_embedding &of, const EmbeddingInputs &in, const EmbeddingWork &work, int64_t column,
                            M mask, const EmbeddingGradients &to) {
  const int64_t D = of.hidden, rows = (int64_t)of.batch * of.length;
  for (int64_t row = 0; row < rows; row++) {
    const Lanes d = load(work.rows + row * D + column, mask);
    if (in.ids[row] != of.padding_id) add_to(to.words + in.ids[row] * D, column, mask, d);
    add_to(to.places + position_of(of, in, row) * D, column, mask, d);
    add_to(to.kinds + in.types[row] * D, column, mask, d);
    if (to.task) add_to(to.task, column, mask, d);
  }
  for (int64_t block = 0; block < work.blocks; block++) {
    add_to(to.scale, column, mask, load(work.d_scale + block * D + column, mask));
    add_to(to.shift, column, mask, load(work.d_shift + block * D + column, mask));
  }
}

inline void clear(float *tensor, int64_t rows, int64_t width) {
#pragma omp for schedule(static)
  for (int64_t row = 0; row < rows; row++) memset(tensor + row * width, 0, (size_t)width * sizeof(float));
}

inline void embedding_backward(const fused_embedding *of, const int64_t *ids, const int64_t *types,
                               const int64_t *positions, const float *scale, const void *saved_base, const float *dy,
                               void *work_base, float *d_words, float *d_places, float *d_kinds, float *d_task,
                               float *d_scale, float *d_shift) {
  const EmbeddingSaved saved(*of, saved_base);
  const EmbeddingWork work(*of, work_base);
  const EmbeddingInputs in = {ids, types, positions};
  const EmbeddingGradients to = {d_words, d_places, d_kinds, d_task, d_scale, d_shift};
  const int64_t D = of->hidden;
#pragma omp parallel num_threads(of->threads)
  {
    const TinyIsZero tiny_is_zero;
    embedding_norm_backward(*of, saved, scale, dy, work);
    clear(to.words, of->vocab_size, D);
    clear(to.places, of->num_positions, D);
    clear(to.kinds, of->num_types, D);
    if (to.task) clear(to.task, 1, D);
    clear(to.scale, 1, D);
    clear(to.shift, 1, D);
#pragma omp for schedule(static)
    for (int64_t column = 0; column < D; column += 16) {
      if (column + 16 <= D)
        scatter_columns(*of, in, work, column, Whole(), to);
      else
        scatter_columns(*of, in, work, column, first(D - column), to);
    }
  }
}

}  // namespace
