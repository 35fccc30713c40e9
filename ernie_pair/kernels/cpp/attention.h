// The attention of one head of one sequence, forward and backward, in float32 whatever its inputs are kept in.
#pragma once
#include <float.h>
#include <math.h>
#include <string.h>

#include "dropout.h"
#include "small_products.h"

namespace {

// The sizes of one head. Queries are the first `queries` positions of the sequence.
struct Head {
  int64_t queries, length, width;      // Q, S, D / H
  int64_t padded_length, padded_width;  // rounded up to whole vectors

  Head(int64_t queries, int64_t length, int64_t width)
      : queries(queries), length(length), width(width), padded_length(round_up(length, 16)),
        padded_width(round_up(width, 16)) {}
  float scale() const { return 1.0f / sqrtf((float)width); }
  int64_t bit_words() const { return words_of_bits(length); }  // of one row of probabilities
};

// One head's part of rows that hold all heads: `step` is the distance between two rows.
template <class T>
struct Rows {
  T *at;
  int64_t step;
};

template <class T>
inline void gather(const Head &head, int64_t rows, Rows<const T> from, float *to) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < head.padded_width; j += 16)
      store(to + i * head.padded_width + j, Whole(), load(from.at + i * from.step + j, first(head.width - j)));
}

// to [width, padded_length] = the transpose of from [length, padded_width]; beyond the length it is zero.
inline void transpose(const Head &head, const float *from, float *to) {
  for (int64_t j = 0; j < head.width; j++) {
    for (int64_t i = 0; i < head.length; i++) to[j * head.padded_length + i] = from[i * head.padded_width + j];
    for (int64_t i = head.length; i < head.padded_length; i++) to[j * head.padded_length + i] = 0;
  }
}

template <class T>
inline void scatter(const Head &head, int64_t rows, const float *from, Rows<T> to) {
  for (int64_t i = 0; i < rows; i++)
    sweep(head.width, [&](int64_t j, auto mask) {
      store(to.at + i * to.step + j, mask, load(from + i * head.padded_width + j, mask));
    });
}

// scores [S] of one query, masked -> probabilities, in place; they are zero beyond the length.
inline void softmax_row(const Head &head, const float *mask, float *scores) {
  const Lanes scale = fill(head.scale()), least = fill(-FLT_MAX);
  Lanes top = least;
  for (int64_t j = 0; j < head.padded_length; j += 16) {
    const Mask inside = first(head.length - j);
    Lanes score = load(scores + j, Whole()) * scale;
    if (mask) score = score + load(mask + j, inside);
    score = choose(inside, score, least);
    store(scores + j, Whole(), score);
    top = larger(top, score);
  }
  const Lanes largest_score = fill(largest(top));
  Lanes total = zero();
  for (int64_t j = 0; j < head.padded_length; j += 16) {
    const Lanes e = keep(first(head.length - j), exponential(load(scores + j, Whole()) - largest_score));
    store(scores + j, Whole(), e);
    total = total + e;
  }
  const Lanes share = fill(1.0f / sum(total));
  for (int64_t j = 0; j < head.padded_length; j += 16) store(scores + j, Whole(), load(scores + j, Whole()) * share);
}

template <class T>
struct HeadForward {
  Rows<const T> q, k, v;
  const float *mask;     // [S] or NULL
  const uint32_t *bits;  // [Q, bit_words] or NULL
  float upscale;
  T *probabilities;  // [Q, padded_length]: kept for the backward pass, before dropout
  Rows<T> context;
};

// scores [Q, padded_length] -> probabilities, kept; `dropped` gets them after dropout, and may alias the scores.
template <class T, class D>
inline void probabilities_of(const Head &head, const HeadForward<T> &of, float *scores, D *dropped) {
  for (int64_t i = 0; i < head.queries; i++, scores += head.padded_length, dropped += head.padded_length) {
    softmax_row(head, of.mask, scores);
    const uint32_t *bits = of.bits ? of.bits + i * head.bit_words() : nullptr;
    for (int64_t j = 0; j < head.padded_length; j += 16) {
      const Lanes probability = load(scores + j, Whole());
      store(of.probabilities + i * head.padded_length + j, Whole(), probability);
      store(dropped + j, Whole(), drop(probability, bits, j, of.upscale));
    }
  }
}

// The rows of one head, contiguous; of_queries: [Q, padded_width]; of_keys: [S, padded_width]; turned: [width,
// padded_length]; scores: [Q, padded_length].
template <class T>
struct HeadWork {
  float *of_queries[2], *of_keys[3], *turned, *scores[2];

  HeadWork(const Head &head, Space &space) {
    for (float *&part : of_queries) part = space.take<float>(head.queries * head.padded_width);
    for (float *&part : of_keys) part = space.take<float>(head.length * head.padded_width);
    turned = space.take<float>(head.width * head.padded_length);
    for (float *&part : scores) part = space.take<float>(head.queries * head.padded_length);
  }
};

template <class T>
inline void head_forward(const Head &head, const HeadForward<T> &of, const HeadWork<T> &work) {
  float *q = work.of_queries[0], *k = work.of_keys[0], *v = work.of_keys[1], *kt = work.turned, *p = work.scores[0];
  float *context = work.of_queries[1];
  gather<T>(head, head.queries, of.q, q);
  gather<T>(head, head.length, of.k, k);
  gather<T>(head, head.length, of.v, v);
  transpose(head, k, kt);
  multiply_small(head.queries, head.padded_length, head.width, {q, head.padded_width, 1}, kt, head.padded_length, false, p,
                 head.padded_length);
  probabilities_of(head, of, p, p);
  multiply_small(head.queries, head.padded_width, head.length, {p, head.padded_length, 1}, v, head.padded_width, false,
                 context, head.padded_width);
  scatter(head, head.queries, context, of.context);
}

template <class T>
struct HeadBackward {
  Rows<const T> q, k, v;
  Rows<const float> d_context;
  const T *probabilities;
  const uint32_t *bits;
  float upscale;
  Rows<T> d_q, d_k, d_v;
  float *sum_q, *sum_k, *sum_v;  // [width]: the gradients of the biases are accumulated here
};

// The gradient of the scores of one query from that of its probabilities, in place if they alias; `dropped` gets the
// probabilities after dropout.
template <class T, class D>
inline void softmax_row_backward(const Head &head, const T *probabilities, const uint32_t *bits, float upscale,
                                 float *gradient, D *of_scores, D *dropped) {
  Lanes along = zero();
  for (int64_t j = 0; j < head.padded_length; j += 16) {
    const Lanes probability = load(probabilities + j, Whole());
    const Lanes d = drop(load(gradient + j, Whole()), bits, j, upscale);
    store(dropped + j, Whole(), drop(probability, bits, j, upscale));
    store(gradient + j, Whole(), d);
    along = add_product(d, probability, along);
  }
  const Lanes mean = fill(sum(along)), scale = fill(head.scale());
  for (int64_t j = 0; j < head.padded_length; j += 16) {
    const Lanes d = load(gradient + j, Whole()) - mean;
    store(of_scores + j, Whole(), load(probabilities + j, Whole()) * d * scale);
  }
}

// The same for all queries.
template <class T, class D>
inline void softmax_backward(const Head &head, const HeadBackward<T> &of, float *gradient, D *of_scores, D *dropped) {
  const int64_t length = head.padded_length;
  for (int64_t i = 0; i < head.queries; i++)
    softmax_row_backward(head, of.probabilities + i * length, of.bits ? of.bits + i * head.bit_words() : nullptr,
                         of.upscale, gradient + i * length, of_scores + i * length, dropped + i * length);
}

template <class T>
inline void put_gradient(const Head &head, int64_t rows, const float *gradient, Rows<T> to, float *sums) {
  scatter(head, rows, gradient, to);
  for (int64_t i = 0; i < rows; i++)
    sweep(head.width, [&](int64_t j, auto mask) {
      add_to(sums, j, mask, load(gradient + i * head.padded_width + j, mask));
    });
}

template <class T>
inline void head_backward(const Head &head, const HeadBackward<T> &of, const HeadWork<T> &work) {
  float *q = work.of_queries[0], *g = work.of_queries[1], *k = work.of_keys[0], *v = work.of_keys[1];
  float *vt = work.turned, *dropped = work.scores[0], *d_scores = work.scores[1], *result = work.of_keys[2];
  gather<T>(head, head.queries, of.q, q);
  gather<float>(head, head.queries, of.d_context, g);
  gather<T>(head, head.length, of.k, k);
  gather<T>(head, head.length, of.v, v);
  transpose(head, v, vt);
  const int64_t width = head.padded_width, length = head.padded_length;
  multiply_small(head.queries, length, head.width, {g, width, 1}, vt, length, false, d_scores, length);
  softmax_backward(head, of, d_scores, d_scores, dropped);
  multiply_small(head.queries, width, head.length, {d_scores, length, 1}, k, width, false, result, width);
  put_gradient(head, head.queries, result, of.d_q, of.sum_q);
  multiply_small(head.length, width, head.queries, {d_scores, 1, length}, q, width, false, result, width);
  put_gradient(head, head.length, result, of.d_k, of.sum_k);
  multiply_small(head.length, width, head.queries, {dropped, 1, length}, g, width, false, result, width);
  put_gradient(head, head.length, result, of.d_v, of.sum_v);
}

}  // namespace
