// AdamW over many tensors at once, and the sum of their squares.
#pragma once
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "basics.h"
#include "fused.h"

namespace {

constexpr int64_t PIECE = 1 << 15;  // elements that one thread takes at a time

// The pieces of many tensors, numbered consecutively: piece -> tensor and first element.
struct Pieces {
  int64_t count;
  const int64_t *sizes;

  int64_t total() const {
    int64_t pieces = 0;
    for (int64_t tensor = 0; tensor < count; tensor++) pieces += (sizes[tensor] + PIECE - 1) / PIECE;
    return pieces;
  }
  void find(int64_t piece, int64_t &tensor, int64_t &start) const {
    for (tensor = 0; piece >= (sizes[tensor] + PIECE - 1) / PIECE; tensor++)
      piece -= (sizes[tensor] + PIECE - 1) / PIECE;
    start = piece * PIECE;
  }
  int64_t size_of(int64_t tensor, int64_t start) const {
    return sizes[tensor] - start < PIECE ? sizes[tensor] - start : PIECE;
  }
};

// Decoupled weight decay (Loshchilov and Hutter 2019), in Paddle's form.
inline void adamw_step(const fused_adamw *of, int64_t count, const int64_t *sizes, const float *rates,
                       const float *decays, float *const *parameters, const float *const *gradients,
                       float *const *moments1, float *const *moments2) {
  const Pieces pieces = {count, sizes};
  const int64_t total = pieces.total();
  const float root2 = sqrtf(1 - of->power2), epsilon = of->epsilon * root2;
  const Lanes beta1 = fill(of->beta1), beta2 = fill(of->beta2), factor = fill(of->gradient_factor);
  share_out(total, of->threads, [&](int64_t piece) {
    int64_t tensor, start;
    pieces.find(piece, tensor, start);
    const Lanes kept = fill(1 - rates[tensor] * decays[tensor]);
    const Lanes rate = fill(rates[tensor] * (root2 / (1 - of->power1)));
    const float *gradient = gradients[tensor] + start;
    float *parameter = parameters[tensor] + start, *moment1 = moments1[tensor] + start, *moment2 = moments2[tensor] + start;
    sweep(pieces.size_of(tensor, start), [&](int64_t j, auto mask) {
      const Lanes d = load(gradient + j, mask) * factor;
      const Lanes first = beta1 * load(moment1 + j, mask) + (fill(1.0f) - beta1) * d;
      const Lanes second = beta2 * load(moment2 + j, mask) + (fill(1.0f) - beta2) * d * d;
      store(moment1 + j, mask, first);
      store(moment2 + j, mask, second);
      const Lanes step = first / (root(second) + fill(epsilon));
      store(parameter + j, mask, subtract_product(rate, step, load(parameter + j, mask) * kept));
    });
  });
}

// Each row of sums in float32, the rest in float64 and in order.
inline double sum_of_squares(int64_t count, const int64_t *sizes, const float *const *tensors, int threads) {
  const Pieces pieces = {count, sizes};
  const int64_t total = pieces.total();
  double *sums = (double *)malloc((size_t)(total + 1) * sizeof(double));
  share_out(total, threads, [&](int64_t piece) {
    int64_t tensor, start;
    pieces.find(piece, tensor, start);
    const int64_t size = pieces.size_of(tensor, start);
    sums[piece] = 0;
    for (int64_t row = 0; row < size; row += 1024) {
      Lanes squares = zero();
      sweep(size - row < 1024 ? size - row : 1024, [&](int64_t j, auto mask) {
        const Lanes value = load(tensors[tensor] + start + row + j, mask);
        squares = add_product(value, value, squares);
      });
      sums[piece] += sum(squares);
    }
  });
  double all = 0;
  for (int64_t piece = 0; piece < total; piece++) all += sums[piece];
  free(sums);
  return all;
}

}  // namespace
