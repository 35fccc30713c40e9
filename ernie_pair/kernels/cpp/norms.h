// Layer norm of a row, fused with what precedes it: bias, dropout and the residual.
#pragma once
#include <math.h>

#include "dropout.h"

namespace {

// The parameters of the norm of one row; bits NULL: no dropout.
struct Norm {
  int64_t width;
  const float *bias, *scale, *shift;
  const uint32_t *bits;
  float upscale, epsilon;
};

// Of one row, kept from forward to backward.
struct NormState {
  float *sum;         // [D]: the input of the norm
  float *statistics;  // [2]: its mean, and one over its standard deviation
};

inline NormState row_of(NormState state, int64_t row, int64_t width) {
  return {state.sum + row * width, state.statistics + row * 2};
}

// y = norm(residual + dropout(x + bias)); `narrow`, if not NULL, gets the same in T.
template <class T>
ALWAYS void norm_forward(const Norm &norm, const float *x, const float *residual, NormState state, float *y, T *narrow) {
  Lanes total = zero();
  sweep(norm.width, [&](int64_t j, auto mask) {
    const Lanes value = drop(load(x + j, mask) + load(norm.bias + j, mask), norm.bits, j, norm.upscale);
    const Lanes row = value + load(residual + j, mask);
    store(state.sum + j, mask, row);
    total = total + keep(mask, row);
  });
  const Lanes mean = fill(sum(total) / (float)norm.width);
  Lanes squares = zero();
  sweep(norm.width, [&](int64_t j, auto mask) {
    const Lanes off = keep(mask, load(state.sum + j, mask) - mean);
    squares = add_product(off, off, squares);
  });
  const float inverse = 1.0f / sqrtf(sum(squares) / (float)norm.width + norm.epsilon);
  state.statistics[0] = sum(total) / (float)norm.width;
  state.statistics[1] = inverse;
  sweep(norm.width, [&](int64_t j, auto mask) {
    const Lanes unit = (load(state.sum + j, mask) - mean) * fill(inverse);
    const Lanes row = add_product(unit, load(norm.scale + j, mask), load(norm.shift + j, mask));
    store(y + j, mask, row);
    if (narrow) store(narrow + j, mask, row);
  });
}

// The gradients of a norm's parameters, sums over rows; bias NULL: there is none.
struct NormGradients {
  float *scale, *shift, *bias;
};

// dy -> d_residual, and in `d_x` (of T, or NULL) the gradient before dropout; the parameters' gradients are accumulated.
template <class T>
ALWAYS void norm_backward(const Norm &norm, NormState state, const float *dy, float *d_residual, T *d_x,
                          NormGradients gradients) {
  const Lanes mean = fill(state.statistics[0]), inverse = fill(state.statistics[1]);
  Lanes along_shift = zero(), along_scale = zero();
  sweep(norm.width, [&](int64_t j, auto mask) {
    const Lanes d = load(dy + j, mask), unit = keep(mask, (load(state.sum + j, mask) - mean) * inverse);
    const Lanes d_unit = d * load(norm.scale + j, mask);
    along_shift = along_shift + d_unit;
    along_scale = add_product(d_unit, unit, along_scale);
    add_to(gradients.scale, j, mask, d * unit);
    add_to(gradients.shift, j, mask, d);
  });
  const Lanes shift = fill(sum(along_shift) / (float)norm.width), scale = fill(sum(along_scale) / (float)norm.width);
  sweep(norm.width, [&](int64_t j, auto mask) {
    const Lanes unit = (load(state.sum + j, mask) - mean) * inverse;
    const Lanes d_unit = load(dy + j, mask) * load(norm.scale + j, mask);
    const Lanes d = inverse * (d_unit - add_product(unit, scale, shift));
    store(d_residual + j, mask, d);
    const Lanes below = drop(d, norm.bits, j, norm.upscale);
    if (d_x) store(d_x + j, mask, below);
    if (gradients.bias) add_to(gradients.bias, j, mask, below);
  });
}

}  // namespace
