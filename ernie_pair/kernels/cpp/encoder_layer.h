// An encoder layer, post-norm, forward and backward.
//
// The rows are processed in blocks of whole sequences, from the first product to the last: the result of one product is
// still in the cache when the next reads it. Where no backward pass follows, all blocks of a thread use the same memory,
// which stays in the cache as well. T is the type that products read and the backward pass keeps: float, or
// Half with sums, norms, softmax and the residual in float32. Blocks depend only on the shape, and so do the sums over
// them: the number of threads changes nothing.
//
// M rows go in, R come out: B S, or without padding those of the tokens alone, where S is the longest sequence. Only the
// attention tells sequences apart. Queries are all positions of a sequence, or the first if nothing else comes out. With
// chosen rows, only what follows the attention is limited to them.
#pragma once
#include <omp.h>
#include <string.h>

#include "attention.h"
#include "fused.h"
#include "norms.h"
#ifdef FUSED_TILES
#include "tile_attention.h"
#endif
#include "weights.h"

namespace {

constexpr int64_t BLOCK_ROWS = 256;

template <class T>
constexpr bool is_half() {
  return sizeof(T) == 2;
}

// The shape of a layer.
struct Shape {
  int64_t batch, length, hidden, heads, inner;  // length: of the longest sequence
  bool is_whole;                                // all positions are queries, not only the first of each sequence
  const int32_t *starts;                        // of the sequences among the rows; NULL: all are of one length
  const int32_t *chosen;                        // the rows that come out; NULL: all queries
  int64_t rows, query_rows, out_rows;
  int64_t blocks, block_rows;  // their number, and the rows of the largest

  explicit Shape(const fused_layer &of)
      : batch(of.batch), length(of.length), hidden(of.hidden), heads(of.heads), inner(of.inner),
        is_whole(!of.first_token_only), starts(of.starts), chosen(of.rows), rows(start(batch)),
        query_rows(query_row(batch)), out_rows(of.rows ? of.out_rows : query_rows), blocks(0), block_rows(0) {
    for (int64_t first = 0, end; first < batch; first = end, blocks++) {
      end = block_end(first);
      if (start(end) - start(first) > block_rows) block_rows = start(end) - start(first);
    }
  }
  int64_t start(int64_t sequence) const { return starts ? starts[sequence] - starts[0] : sequence * length; }
  int64_t query_row(int64_t sequence) const { return is_whole ? start(sequence) : sequence; }
  // A block is as many whole sequences as BLOCK_ROWS hold, at least one.
  int64_t block_end(int64_t first) const {
    int64_t end = first + 1;
    while (end < batch && start(end + 1) - start(first) <= BLOCK_ROWS) end++;
    return end;
  }
  // Of one sequence, or of the longest.
  Head head(int64_t sequence) const { return head_of(start(sequence + 1) - start(sequence)); }
  Head largest_head() const { return head_of(length); }

 private:
  Head head_of(int64_t count) const { return Head(is_whole ? count : 1, count, hidden / heads); }
};

// The sequences of a block, and its rows: first and count of the inputs, the queries and the outputs.
struct Block {
  int64_t first, end, row, rows, query_row, query_rows, out_row, out_rows;

  Block(const Shape &shape, int64_t number) : first(0) {
    while (number-- > 0) first = shape.block_end(first);
    end = shape.block_end(first);
    row = shape.start(first);
    rows = shape.start(end) - row;
    query_row = shape.query_row(first);
    query_rows = shape.query_row(end) - query_row;
    out_row = shape.chosen ? chosen_before(shape, row) : query_row;
    out_rows = shape.chosen ? chosen_before(shape, row + rows) - out_row : query_rows;
  }

 private:
  static int64_t chosen_before(const Shape &shape, int64_t row) {
    int64_t low = 0, high = shape.out_rows;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (shape.chosen[middle] < row)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
};

// What the forward pass keeps for the backward pass.
template <class T>
struct Saved {
  T *x;                       // [M, D]; in float32 it is the input itself
  T *firsts;                  // [B, D]: its rows of first tokens, where those alone are queries
  T *q, *k, *v;               // with biases; side by side where all rows are queries
  int64_t q_step, kv_step;    // from row to row
  T *probabilities, *context;  // [queries, H, padded S], [R, D]
  T *middle;                  // [R, D]: between the two halves of the layer; in float32 the same as `residual`
  float *residual;            // [R, D]
  T *before, *after;          // [R, F]: the activation; before gelu alone, and for a backward pass
  NormState norm1, norm2;     // of R rows
  uint32_t *attention_bits, *bits1, *bits2;
  size_t bytes;

  Saved(const Shape &shape, const fused_layer &layer, const void *base) {
    Space space(base);
    const int64_t D = shape.hidden, M = shape.rows, R = shape.out_rows;
    const Head head = shape.largest_head();
    x = is_half<T>() ? space.take<T>(M * D) : nullptr;
    firsts = shape.is_whole ? nullptr : space.take<T>(shape.batch * D);
    if (shape.is_whole) {
      q = space.take<T>(M * 3 * D);
      k = q + D;
      q_step = kv_step = 3 * D;
    } else {
      q = space.take<T>(shape.query_rows * D);
      k = space.take<T>(M * 2 * D);
      q_step = D;
      kv_step = 2 * D;
    }
    v = k + D;
    probabilities = space.take<T>(shape.query_rows * shape.heads * head.padded_length);
    context = space.take<T>(R * D);
    residual = space.take<float>(R * D);
    middle = is_half<T>() ? space.take<T>(R * D) : (T *)residual;
    const bool has_before = layer.activation == FUSED_GELU && !layer.forward_only;
    before = has_before ? space.take<T>(R * shape.inner) : nullptr;
    after = space.take<T>(R * shape.inner);
    norm1 = {space.take<float>(R * D), space.take<float>(R * 2)};
    norm2 = {space.take<float>(R * D), space.take<float>(R * 2)};
    attention_bits = space.take<uint32_t>(shape.query_rows * shape.heads * head.bit_words());
    bits1 = space.take<uint32_t>(R * words_of_bits(D));
    bits2 = space.take<uint32_t>(R * words_of_bits(D));
    bytes = space.bytes();
  }
};

// The gradients that the weight gradients are computed from, and the sums of each block over its rows.
template <class T>
struct Gradients {
  T *q, *k, *v;  // in the rows of Saved
  T *out, *down;  // [R, D]: of the results of the products with these weights
  T *up;         // [R, F]
  float *sums;   // [blocks, sum_width]
  int64_t sum_width;
  size_t bytes;

  enum { SCALE2, SHIFT2, DOWN, SCALE1, SHIFT1, OUT, Q, K, V, UP };  // of [D] each, the last of [F]

  Gradients(const Shape &shape, void *base) {
    Space space(base);
    const int64_t D = shape.hidden, M = shape.rows, R = shape.out_rows;
    if (shape.is_whole) {
      q = space.take<T>(M * 3 * D);
      k = q + D;
    } else {
      q = space.take<T>(shape.query_rows * D);
      k = space.take<T>(M * 2 * D);
    }
    v = k + D;
    out = space.take<T>(R * D);
    down = space.take<T>(R * D);
    up = space.take<T>(R * shape.inner);
    sum_width = UP * D + shape.inner;
    sums = space.take<float>(shape.blocks * sum_width);
    bytes = space.bytes();
  }
};

// What one thread needs for one block.
template <class T>
struct BlockWork {
  float *wide;    // [rows, max(3 D, F)]
  float *narrow;  // [rows, D]
  HeadWork<T> head;
  size_t bytes;

  BlockWork(const Shape &shape, Space space)
      : wide(take_wide(shape, space)), narrow(space.take<float>(shape.block_rows * shape.hidden)),
        head(shape.largest_head(), space), bytes(space.bytes()) {}

 private:
  static float *take_wide(const Shape &shape, Space &space) {
    const int64_t width = shape.inner > 3 * shape.hidden ? shape.inner : 3 * shape.hidden;
    return space.take<float>(shape.block_rows * width);
  }
};

// The call of a block's sequences alone.
inline fused_layer call_of(const fused_layer &layer, int64_t first, int64_t end) {
  fused_layer part = layer;
  part.batch = (int32_t)(end - first);
  if (!layer.starts) return part;
  part.starts += first;
  part.length = 0;
  for (int64_t sequence = first; sequence < end; sequence++) {
    const int32_t length = layer.starts[sequence + 1] - layer.starts[sequence];
    if (length > part.length) part.length = length;
  }
  return part;
}

// What one thread needs for a block, with what the block would save, where no backward pass follows.
template <class T>
inline size_t forward_only_bytes(const fused_layer &layer, const Shape &shape) {
  size_t most = 0;
  for (int64_t first = 0, end; first < shape.batch; first = end) {
    end = shape.block_end(first);
    const fused_layer part = call_of(layer, first, end);
    const Shape alone(part);
    const size_t bytes = Saved<T>(alone, part, nullptr).bytes + BlockWork<T>(alone, Space(nullptr)).bytes;
    if (bytes > most) most = bytes;
  }
  return most;
}

// What one thread needs for a block, or for the gradient of a part of a weight.
template <class T>
inline size_t thread_work_bytes(const fused_layer &layer, const Shape &shape) {
  if (layer.forward_only) return forward_only_bytes<T>(layer, shape);
  const size_t block = BlockWork<T>(shape, Space(nullptr)).bytes;
  const size_t gradient = weight_gradient_work_bytes<T>(shape.hidden, shape.rows);
  return block > gradient ? block : gradient;
}

// A layer call, forward or backward.
template <class T>
class EncoderLayer {
 public:
  EncoderLayer(const fused_layer &layer, const float *x, const float *const *parameters, const void *packed,
               const void *saved)
      : layer(layer), shape(layer), largest(shape.largest_head()), parameters(parameters), packed(packed), x(x),
        weights(layer, parameters, packed), saved(shape, layer, saved) {}

  void forward(const float *mask, void *work, float *y) {
    const size_t bytes = thread_work_bytes<T>(layer, shape);
#pragma omp parallel num_threads(layer.threads)
    {
      const TinyIsZero tiny_is_zero;
      omp_set_num_threads(1);  // for oneDNN within this thread
      char *own = (char *)work + (size_t)omp_get_thread_num() * bytes;
#pragma omp for schedule(static, 1)
      for (int64_t number = 0; number < shape.blocks; number++) {
        const Block block(shape, number);
        if (layer.forward_only)
          forward_alone(block, mask, own, y);
        else
          forward_block(block, mask, Space(own), y);
      }
    }
  }

  void backward(const float *dy, void *work, float *dx, float *const *gradients) {
    Gradients<T> d(shape, work);
    char *rest = (char *)work + d.bytes;
    memset(d.sums, 0, (size_t)(shape.blocks * d.sum_width) * sizeof(float));
    const size_t bytes = thread_work_bytes<T>(layer, shape);
#pragma omp parallel num_threads(layer.threads)
    {
      const TinyIsZero tiny_is_zero;
      omp_set_num_threads(1);
      char *own = rest + (size_t)omp_get_thread_num() * bytes;
#pragma omp for schedule(static, 1)
      for (int64_t number = 0; number < shape.blocks; number++) {
        const Block block(shape, number);
        const BlockWork<T> space(shape, Space(own));
        float *sums = d.sums + number * d.sum_width;
        feed_forward_backward(block, d, sums, dy, dx, space);
        attend_backward(block, d, sums, dx, space);
      }
      weight_gradients(d, gradients, own);
    }
    add_sums(d, gradients);
  }

 private:
  const fused_layer &layer;
  const Shape shape;
  const Head largest;
  const float *const *parameters;
  const void *packed;
  const float *x;
  const Weights<T> weights;
  const Saved<T> saved;

  const T *rows_of_x() const { return is_half<T>() ? saved.x : (const T *)x; }
  // The input row of an output row.
  int64_t row_in(int64_t out_row) const {
    if (shape.chosen) return shape.chosen[out_row];
    return shape.is_whole ? out_row : shape.start(out_row);
  }
  const T *rows_of_queries() const { return shape.is_whole ? rows_of_x() : saved.firsts; }
  // The queries of all sequences and heads before this one: what is kept of a query takes the room of the longest.
  int64_t queries_before(const Head &head, int64_t sequence, int64_t number) const {
    return shape.query_row(sequence) * shape.heads + number * head.queries;
  }
  Dropout attention_dropout() const { return {layer.seed, layer.layer * 4, layer.attention_dropout}; }
  Dropout hidden_dropout(uint32_t which) const { return {layer.seed, layer.layer * 4 + which, layer.hidden_dropout}; }

  // Without the dropout bits of its rows.
  Norm norm_of(int bias, int scale, int shift) const {
    return {shape.hidden, parameters[bias], parameters[scale], parameters[shift], nullptr, hidden_dropout(0).upscale(),
            layer.epsilon};
  }

  // ---- forward

  void forward_block(const Block &block, const float *mask, Space work, float *y) const {
    const BlockWork<T> space(shape, work);
    attend(block, mask, space);
    feed_forward(block, space, y);
  }

  // A block as a call of its own, which saves to the memory of the block before.
  void forward_alone(const Block &block, const float *mask, char *own, float *y) const {
    const fused_layer part = call_of(layer, block.first, block.end);
    const EncoderLayer alone(part, x + block.row * shape.hidden, parameters, packed, own);
    alone.forward_block(Block(alone.shape, 0), mask ? mask + block.row : nullptr, Space(own + alone.saved.bytes),
                        y + block.out_row * shape.hidden);
  }

  void attend(const Block &block, const float *mask, const BlockWork<T> &space) const {
    if (is_half<T>())
      convert(x + block.row * shape.hidden, block.rows * shape.hidden, saved.x + block.row * shape.hidden);
    const int64_t D = shape.hidden;
    for (int64_t row = block.query_row; !shape.is_whole && row < block.query_row + block.query_rows; row++)
      memcpy(saved.firsts + row * D, rows_of_x() + shape.start(row) * D, (size_t)D * sizeof(T));
    project(block, space.wide);
    T *context = shape.chosen ? (T *)space.narrow : saved.context + block.query_row * D;
    for (int64_t sequence = block.first; sequence < block.end; sequence++)
      for (int64_t number = 0; number < shape.heads; number++)
        attend_head(sequence, number, mask, space.head, context + (shape.query_row(sequence) - block.query_row) * D);
    for (int64_t row = block.out_row; shape.chosen && row < block.out_row + block.out_rows; row++)
      memcpy(saved.context + row * D, context + (row_in(row) - block.row) * D, (size_t)D * sizeof(T));
    weights.out.multiply(block.out_rows, saved.context + block.out_row * D, D, space.wide, D);
    Norm norm = norm_of(FUSED_BO, FUSED_G1, FUSED_E1);
    for (int64_t row = block.out_row; row < block.out_row + block.out_rows; row++) {
      norm.bits = drawn(hidden_dropout(1), row, saved.bits1);
      norm_forward<T>(norm, space.wide + (row - block.out_row) * D, x + row_in(row) * D, row_of(saved.norm1, row, D),
                      saved.residual + row * D, is_half<T>() ? saved.middle + row * D : nullptr);
    }
  }

  // Queries, keys and values of a block, with their biases.
  void project(const Block &block, float *result) const {
    const int64_t D = shape.hidden, joined = shape.is_whole && Weights<T>::ARE_JOINED;
    const T *rows = rows_of_x() + block.row * D, *queries = rows_of_queries() + block.query_row * D;
    if (joined) weights.qkv.multiply(block.rows, rows, D, result, 3 * D);
    struct Part { const Weight<T> &weight; int bias; T *to; int64_t step, rows; const T *from; };
    const Part parts[3] = {
        {weights.q, FUSED_BQ, saved.q + block.query_row * saved.q_step, saved.q_step, block.query_rows, queries},
        {weights.k, FUSED_BK, saved.k + block.row * saved.kv_step, saved.kv_step, block.rows, rows},
        {weights.v, FUSED_BV, saved.v + block.row * saved.kv_step, saved.kv_step, block.rows, rows}};
    for (int which = 0; which < 3; which++) {
      const Part &part = parts[which];
      const int64_t step = joined ? 3 * D : is_half<T>() ? D : part.step;
      float *from = joined ? result + which * D : is_half<T>() ? result : (float *)part.to;  // float32: in place
      if (!joined) part.weight.multiply(part.rows, part.from, D, from, step);
      for (int64_t row = 0; row < part.rows; row++)
        sweep(D, [&](int64_t j, auto mask) {
          store(part.to + row * part.step + j, mask,
                load(from + row * step + j, mask) + load(parameters[part.bias] + j, mask));
        });
    }
  }

  void attend_head(int64_t sequence, int64_t number, const float *mask, const HeadWork<T> &work, T *context) const {
    const Head head = shape.head(sequence);
    const int64_t column = number * head.width, before = queries_before(head, sequence, number);
    const int64_t q = shape.query_row(sequence) * saved.q_step + column;
    const int64_t kv = shape.start(sequence) * saved.kv_step + column;
    const Dropout dropout = attention_dropout();
    uint32_t *bits = saved.attention_bits + before * largest.bit_words();
    const uint32_t cell = (uint32_t)(sequence * shape.heads + number);
    if (dropout.drops()) draw_bits(dropout, cell, head.queries * head.bit_words(), bits);
    head_forward<T>(head,
                    {{saved.q + q, saved.q_step},
                     {saved.k + kv, saved.kv_step},
                     {saved.v + kv, saved.kv_step},
                     mask ? mask + shape.start(sequence) : nullptr,
                     dropout.drops() ? bits : nullptr,
                     dropout.upscale(),
                     saved.probabilities + before * largest.padded_length,
                     {context + column, shape.hidden}},
                    work);
  }

  const uint32_t *drawn(const Dropout &dropout, int64_t row, uint32_t *all) const {
    uint32_t *bits = all + row * words_of_bits(shape.hidden);
    if (dropout.drops()) draw_bits(dropout, (uint32_t)row_in(row), words_of_bits(shape.hidden), bits);
    return dropout.drops() ? bits : nullptr;
  }

  void feed_forward(const Block &block, const BlockWork<T> &space, float *y) const {
    const int64_t D = shape.hidden, F = shape.inner, start = block.out_row;
    // In float32 a strip is all columns, and activated in place.
    float *products = is_half<T>() ? space.wide : (float *)(saved.before ? saved.before : saved.after) + start * F;
    for (int64_t j = 0, columns; j < F; j += columns) {
      columns = strip_at(j);
      weights.up.multiply_strip(j, columns, block.out_rows, saved.middle + start * D, D, products, columns);
      for (int64_t row = 0; row < block.out_rows; row++) activate(start + row, j, columns, products + row * columns);
    }
    weights.down.multiply(block.out_rows, saved.after + start * F, F, space.wide, D);
    Norm norm = norm_of(FUSED_B2, FUSED_G2, FUSED_E2);
    for (int64_t row = start; row < start + block.out_rows; row++) {
      norm.bits = drawn(hidden_dropout(2), row, saved.bits2);
      norm_forward<T>(norm, space.wide + (row - start) * D, saved.residual + row * D, row_of(saved.norm2, row, D),
                      y + row * D, nullptr);
    }
  }

  // The columns of the inner products that are computed and activated at a time: they are still in the cache then.
  int64_t strip_at(int64_t j) const {
    return shape.inner - j < Weight<T>::STRIP ? shape.inner - j : Weight<T>::STRIP;
  }

  // The columns of a row from `first` on.
  void activate(int64_t row, int64_t first, int64_t columns, const float *products) const {
    const float *bias = parameters[FUSED_B1] + first;
    T *after = saved.after + row * shape.inner + first;
    if (layer.activation == FUSED_RELU) {
      sweep(columns, [&](int64_t j, auto mask) {
        store(after + j, mask, larger(zero(), load(products + j, mask) + load(bias + j, mask)));
      });
      return;
    }
    T *before = saved.before + row * shape.inner + first;  // if it is kept
    sweep(columns, [&](int64_t j, auto mask) {
      const Lanes value = load(products + j, mask) + load(bias + j, mask);
      Lanes below, bell;
      normal(value, below, bell);
      if (saved.before) store(before + j, mask, value);
      store(after + j, mask, value * below);
    });
  }

  // ---- backward

  const uint32_t *bits_of(int64_t row, const uint32_t *all) const {
    return layer.hidden_dropout > 0 ? all + row * words_of_bits(shape.hidden) : nullptr;
  }

  // dy -> the gradient of `residual` in space.narrow; those of the block's rows in d.
  void feed_forward_backward(const Block &block, const Gradients<T> &d, float *sums, const float *dy, float *dx,
                             const BlockWork<T> &space) const {
    const int64_t D = shape.hidden, F = shape.inner, start = block.out_row;
    Norm norm = norm_of(FUSED_B2, FUSED_G2, FUSED_E2);
    for (int64_t row = start; row < start + block.out_rows; row++) {
      norm.bits = bits_of(row, saved.bits2);
      norm_backward<T>(norm, row_of(saved.norm2, row, D), dy + row * D, space.narrow + (row - start) * D,
                       d.down + row * D, {sums + d.SCALE2 * D, sums + d.SHIFT2 * D, sums + d.DOWN * D});
    }
    for (int64_t j = 0, columns; j < F; j += columns) {
      columns = strip_at(j);
      weights.down.multiply_back_strip(j, columns, block.out_rows, d.down + start * D, D, space.wide, columns);
      for (int64_t row = 0; row < block.out_rows; row++)
        activate_backward(start + row, j, columns, space.wide + row * columns, d.up + (start + row) * F + j,
                          sums + d.UP * D + j);
    }
    weights.up.multiply_back(block.out_rows, d.up + start * F, F, true, space.narrow, D);
    if (shape.chosen || !shape.is_whole) memset(dx + block.row * D, 0, (size_t)(block.rows * D) * sizeof(float));
    norm = norm_of(FUSED_BO, FUSED_G1, FUSED_E1);
    for (int64_t row = start; row < start + block.out_rows; row++) {
      norm.bits = bits_of(row, saved.bits1);
      norm_backward<T>(norm, row_of(saved.norm1, row, D), space.narrow + (row - start) * D, dx + row_in(row) * D,
                       d.out + row * D, {sums + d.SCALE1 * D, sums + d.SHIFT1 * D, sums + d.OUT * D});
    }
    weights.out.multiply_back(block.out_rows, d.out + start * D, D, false, space.narrow, D);
  }

  void activate_backward(int64_t row, int64_t first, int64_t columns, const float *d_after, T *d_before,
                         float *sums) const {
    const bool is_relu = layer.activation == FUSED_RELU;
    const T *kept = (is_relu ? saved.after : saved.before) + row * shape.inner + first;
    sweep(columns, [&](int64_t j, auto mask) {
      Lanes gradient = load(d_after + j, mask);
      if (is_relu)
        gradient = keep(positive(load(kept + j, mask)), gradient);
      else
        gradient = gradient * gelu_slope(load(kept + j, mask));
      store(d_before + j, mask, gradient);
      add_to(sums, j, mask, gradient);
    });
  }

  // The gradient of the context of every query of a block, from that of the output rows, in space.narrow.
  const float *context_gradient(const Block &block, const BlockWork<T> &space) const {
    if (!shape.chosen) return space.narrow;
    const size_t row_bytes = (size_t)shape.hidden * sizeof(float);
    memset(space.wide, 0, (size_t)block.rows * row_bytes);
    for (int64_t row = 0; row < block.out_rows; row++)
      memcpy(space.wide + (row_in(block.out_row + row) - block.row) * shape.hidden, space.narrow + row * shape.hidden,
             row_bytes);
    return space.wide;
  }

  // From the gradient of the context in space.narrow; adds to dx.
  void attend_backward(const Block &block, const Gradients<T> &d, float *sums, float *dx, const BlockWork<T> &space) const {
    const int64_t D = shape.hidden;
    const float *d_context = context_gradient(block, space);
    for (int64_t sequence = block.first; sequence < block.end; sequence++)
      for (int64_t number = 0; number < shape.heads; number++)
        attend_head_backward(sequence, number, d_context + (shape.query_row(sequence) - block.query_row) * D, d, sums,
                             space.head);
    float *to = dx + block.row * D;
    const T *q = d.q + block.query_row * saved.q_step, *k = d.k + block.row * saved.kv_step;
    if (shape.is_whole && Weights<T>::ARE_JOINED) {
      weights.qkv.multiply_back(block.rows, q, saved.q_step, true, to, D);
      return;
    }
    weights.q.multiply_back(block.query_rows, q, saved.q_step, shape.is_whole, shape.is_whole ? to : space.wide, D);
    for (int64_t row = 0; !shape.is_whole && row < block.query_rows; row++)
      sweep(D, [&](int64_t j, auto mask) {
        add_to(dx + row_in(block.query_row + row) * D, j, mask, load(space.wide + row * D + j, mask));
      });
    weights.k.multiply_back(block.rows, k, saved.kv_step, true, to, D);
    weights.v.multiply_back(block.rows, k + D, saved.kv_step, true, to, D);
  }

  void attend_head_backward(int64_t sequence, int64_t number, const float *d_context, const Gradients<T> &d, float *sums,
                            const HeadWork<T> &work) const {
    const Head head = shape.head(sequence);
    const int64_t D = shape.hidden, column = number * head.width, before = queries_before(head, sequence, number);
    const int64_t q = shape.query_row(sequence) * saved.q_step + column;
    const int64_t kv = shape.start(sequence) * saved.kv_step + column;
    const Dropout dropout = attention_dropout();
    head_backward<T>(head,
                     {{saved.q + q, saved.q_step},
                      {saved.k + kv, saved.kv_step},
                      {saved.v + kv, saved.kv_step},
                      {d_context + column, D},
                      saved.probabilities + before * largest.padded_length,
                      dropout.drops() ? saved.attention_bits + before * largest.bit_words() : nullptr,
                      dropout.upscale(),
                      {d.q + q, saved.q_step},
                      {d.k + kv, saved.kv_step},
                      {d.v + kv, saved.kv_step},
                      sums + d.Q * D + column,
                      sums + d.K * D + column,
                      sums + d.V * D + column},
                     work);
  }

  // The weight gradients, products over all rows, split among the threads of a parallel region in squares of D x D.
  void weight_gradients(const Gradients<T> &d, float *const *gradients, void *work) const {
    const int64_t D = shape.hidden, F = shape.inner, M = shape.rows, R = shape.out_rows;
    struct Square { const T *a; int64_t a_step; const T *b; int64_t b_step; float *c; int64_t c_step, height, width, depth; };
    const int64_t strips = (F + D - 1) / D;
#pragma omp for schedule(static, 1)
    for (int64_t number = 0; number < 4 + 2 * strips; number++) {
      const int64_t start = number < 4 ? 0 : (number - 4) / 2 * D, rest = F - start < D ? F - start : D;
      const T *rows = rows_of_x();
      const Square of_attention[4] = {
          {rows_of_queries(), D, d.q, saved.q_step, gradients[FUSED_WQ], D, D, D, shape.query_rows},
          {rows, D, d.k, saved.kv_step, gradients[FUSED_WK], D, D, D, M},
          {rows, D, d.v, saved.kv_step, gradients[FUSED_WV], D, D, D, M},
          {saved.context, D, d.out, D, gradients[FUSED_WO], D, D, D, R}};
      const Square of_feed_forward[2] = {
          {saved.middle, D, d.up + start, F, gradients[FUSED_W1] + start, F, D, rest, R},
          {saved.after + start, F, d.down, D, gradients[FUSED_W2] + start * D, D, rest, D, R}};
      const Square &one = number < 4 ? of_attention[number] : of_feed_forward[number % 2];
      weight_gradient(one.height, one.width, one.depth, one.a, one.a_step, one.b, one.b_step, one.c, one.c_step, work);
    }
  }

  void add_sums(const Gradients<T> &d, float *const *gradients) const {
    static const int parameter_of[] = {FUSED_G2, FUSED_E2, FUSED_B2, FUSED_G1, FUSED_E1,
                                       FUSED_BO, FUSED_BQ, FUSED_BK, FUSED_BV, FUSED_B1};
    for (int which = 0; which <= d.UP; which++) {
      const int64_t count = which == d.UP ? shape.inner : shape.hidden;
      float *to = gradients[parameter_of[which]];
      memcpy(to, d.sums + which * shape.hidden, (size_t)count * sizeof(float));
      for (int64_t block = 1; block < shape.blocks; block++)
        sweep(count, [&](int64_t j, auto mask) {
          add_to(to, j, mask, load(d.sums + block * d.sum_width + which * shape.hidden + j, mask));
        });
    }
  }
};

template <class T>
size_t layer_saved_bytes(const fused_layer *layer) {
  return layer->forward_only ? 0 : Saved<T>(Shape(*layer), *layer, nullptr).bytes;
}

template <class T>
size_t layer_work_bytes(const fused_layer *layer) {
  const Shape shape(*layer);
  const size_t gradients = layer->forward_only ? 0 : Gradients<T>(shape, nullptr).bytes;
  return gradients + (size_t)layer->threads * thread_work_bytes<T>(*layer, shape);
}

template <class T>
void layer_forward(const fused_layer *layer, const float *x, const float *mask, const float *const *parameters,
                   const void *packed, void *saved, void *work, float *y) {
  EncoderLayer<T>(*layer, x, parameters, packed, saved).forward(mask, work, y);
}

template <class T>
void layer_backward(const fused_layer *layer, const float *x, const float *const *parameters, const void *packed,
                    const void *saved, const float *dy, void *work, float *dx, float *const *gradients) {
  EncoderLayer<T>(*layer, x, parameters, packed, saved).backward(dy, work, dx, gradients);
}

}  // namespace
