// The attention of one head of one sequence in bfloat16 on tiles: softmax in float32, its results rounded for the products.
#pragma once
#include "attention.h"
#include "tile_packing.h"

namespace {

// scores [Q, padded_length]; rows [Q or S, padded_width]; dropped and of_scores [Q, padded_length]; context [Q, width];
// right: a factor in tiles; turned: workspace of multiply_turned.
template <>
struct HeadWork<Half> {
  float *scores, *rows;
  Half *dropped, *of_scores, *context, *right, *turned;

  HeadWork(const Head &head, Space &space) {
    const int64_t Q = head.queries, S = head.length, W = head.width;
    scores = space.take<float>(Q * head.padded_length);
    rows = space.take<float>((Q > S ? Q : S) * head.padded_width);
    dropped = space.take<Half>(Q * head.padded_length);
    of_scores = space.take<Half>(Q * head.padded_length);
    context = space.take<Half>(Q * W);
    const int64_t of_keys = packed_halves(W, S), of_values = packed_halves(S, W);
    right = space.take<Half>(of_keys > of_values ? of_keys : of_values);
    turned = space.take<Half>(turned_work_halves(S, W, Q));
  }
};

template <>
inline void head_forward(const Head &head, const HeadForward<Half> &of, const HeadWork<Half> &work) {
  const int64_t Q = head.queries, S = head.length, W = head.width, padded = head.padded_length;
  pack_turned_right(of.k.at, of.k.step, W, S, work.right);
  multiply_packed(Q, padded, W, of.q.at, of.q.step, work.right, false, work.scores, padded);
  probabilities_of(head, of, work.scores, work.dropped);
  pack_right(of.v.at, of.v.step, S, W, work.right);
  multiply_packed(Q, W, S, work.dropped, padded, work.right, false, work.rows, head.padded_width);
  scatter(head, Q, work.rows, of.context);
}

template <>
inline void head_backward(const Head &head, const HeadBackward<Half> &of, const HeadWork<Half> &work) {
  const int64_t Q = head.queries, S = head.length, W = head.width, padded = head.padded_length;
  for (int64_t i = 0; i < Q; i++) convert(of.d_context.at + i * of.d_context.step, W, work.context + i * W);
  pack_turned_right(of.v.at, of.v.step, W, S, work.right);
  multiply_packed(Q, padded, W, work.context, W, work.right, false, work.scores, padded);
  softmax_backward(head, of, work.scores, work.of_scores, work.dropped);
  pack_right(of.k.at, of.k.step, S, W, work.right);
  multiply_packed(Q, W, S, work.of_scores, padded, work.right, false, work.rows, head.padded_width);
  put_gradient(head, Q, work.rows, of.d_q, of.sum_q);
  multiply_turned(S, W, Q, work.of_scores, padded, of.q.at, of.q.step, work.rows, head.padded_width, work.turned);
  put_gradient(head, S, work.rows, of.d_k, of.sum_k);
  multiply_turned(S, W, Q, work.dropped, padded, work.context, W, work.rows, head.padded_width, work.turned);
  put_gradient(head, S, work.rows, of.d_v, of.sum_v);
}

}  // namespace
