// What all kernels use: a loop over a row, the products of oneDNN, workspaces, exp and the normal distribution.
// Included after one of lanes_*.h.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "products.h"

namespace {

#define ALWAYS inline __attribute__((always_inline))

// body(column, mask) for every sixteen columns of a row, including the remainder at its end.
template <class Body>
ALWAYS void sweep(int64_t count, Body body) {
  int64_t column = 0;
  for (; column + 16 <= count; column += 16) body(column, Whole());
  if (column < count) body(column, first(count - column));
}

ALWAYS int64_t round_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// Flushes denormal floats to zero in this thread while it lives: they cost a hundred times as much, and decaying moments
// and probabilities become denormal. It holds whatever the caller has set.
class TinyIsZero {
 public:
  TinyIsZero() : before(_mm_getcsr()) { _mm_setcsr(before | 0x8040); }  // flush results, and inputs, to zero
  ~TinyIsZero() { _mm_setcsr(before); }
  TinyIsZero(const TinyIsZero &) = delete;
  TinyIsZero &operator=(const TinyIsZero &) = delete;

 private:
  const unsigned before;
};

// body(number) for all numbers below `count`, split among the threads in contiguous ranges.
template <class Body>
inline void share_out(int64_t count, int threads, Body body) {
#pragma omp parallel num_threads(threads)
  {
    const TinyIsZero tiny_is_zero;
#pragma omp for schedule(static)
    for (int64_t number = 0; number < count; number++) body(number);
  }
}

// Hands out the parts of a workspace, each aligned to 64 bytes. With base NULL it only counts the bytes.
class Space {
 public:
  explicit Space(const void *base) : start((uintptr_t)base), next(start) {}
  template <class T>
  T *take(int64_t count) {
    T *taken = (T *)next;
    next += (uintptr_t)round_up(count * (int64_t)sizeof(T), 64);
    return taken;
  }
  size_t bytes() const { return next - start; }

 private:
  uintptr_t start, next;
};

// c [m, n] = a b, or c += a b with `add`; `lda` etc.: the distance between two rows. T: a is [k, m]; b is [n, k].
template <bool turn_a = false, bool turn_b = false>
ALWAYS void product(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, bool add,
                    float *c, int64_t ldc) {
  note_product(products.of_float(turn_a ? 'T' : 'N', turn_b ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, add, c, ldc));
}
template <bool turn_a = false, bool turn_b = false>
ALWAYS void product(int64_t m, int64_t n, int64_t k, const Half *a, int64_t lda, const Half *b, int64_t ldb, bool add,
                    float *c, int64_t ldc) {
  note_product(products.of_half(turn_a ? 'T' : 'N', turn_b ? 'T' : 'N', m, n, k, 1.0f, (const uint16_t *)a, lda,
                                (const uint16_t *)b, ldb, add, c, ldc));
}

template <class T>
ALWAYS void convert(const float *from, int64_t count, T *to) {
  sweep(count, [&](int64_t j, auto mask) { store(to + j, mask, load(from + j, mask)); });
}

template <class M>
ALWAYS void add_to(float *sums, int64_t column, M mask, Lanes values) {
  store(sums + column, mask, load(sums + column, mask) + values);
}

// e^x within 2 units in the last place, from -87.3; below, zero. Cephes' reduction by ln 2 in two parts, and its
// polynomial.
ALWAYS Lanes exponential(Lanes of) {
  const Lanes x = larger(fill(-87.3f), of);  // NaN stays NaN
  const Lanes power = rounded(x * fill(1.44269504f));
  Lanes rest = subtract_product(power, fill(0.693359375f), x);
  rest = subtract_product(power, fill(-2.12194440e-4f), rest);
  Lanes p = fill(1.9875691500e-4f);
  p = add_product(p, rest, fill(1.3981999507e-3f));
  p = add_product(p, rest, fill(8.3334519073e-3f));
  p = add_product(p, rest, fill(4.1665795894e-2f));
  p = add_product(p, rest, fill(1.6666665459e-1f));
  p = add_product(p, rest, fill(5.0000001201e-1f));
  p = add_product(p, rest * rest, rest + fill(1.0f));
  return choose(positive(fill(-87.3f) - of), zero(), times_power_of_two(p, power));
}

// The normal distribution below x, and e^(-x^2/2), its density up to a factor. Abramowitz and Stegun 7.1.26, whose
// error is below 1.5e-7.
ALWAYS void normal(Lanes x, Lanes &below, Lanes &bell) {
  bell = exponential(x * x * fill(-0.5f));
  const Lanes t = fill(1.0f) / add_product(absolute(x), fill(0.3275911f * 0.70710678f), fill(1.0f));
  Lanes p = fill(1.061405429f);
  p = add_product(p, t, fill(-1.453152027f));
  p = add_product(p, t, fill(1.421413741f));
  p = add_product(p, t, fill(-0.284496736f));
  p = add_product(p, t, fill(0.254829592f));
  const Lanes tail = p * t * bell * fill(0.5f);  // above |x|
  below = choose(positive(x), fill(1.0f) - tail, tail);
}

// The derivative of x times the normal distribution below x.
ALWAYS Lanes gelu_slope(Lanes x) {
  Lanes below, bell;
  normal(x, below, bell);
  return add_product(x * fill(0.3989422804f), bell, below);  // one over the root of 2 pi
}

}  // namespace
