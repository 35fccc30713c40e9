// Sixteen lanes of float32 or of 32-bit words in two AVX2 registers. See lanes_avx512.h, its counterpart.
#pragma once
#include <immintrin.h>
#include <stdint.h>

namespace {

struct Lanes { __m256 low, high; };
struct Words { __m256i low, high; };
struct Whole {};
struct Mask { __m256i low, high; };
struct Half { uint16_t bits; };  // not used in computations here

constexpr int COLUMNS = 1;

inline Mask first(int64_t count) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int whole = count > 16 ? 16 : (int)count;
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(whole), places), _mm256_cmpgt_epi32(_mm256_set1_epi32(whole - 8), places)};
}
inline Mask mask_of(uint32_t bits) {
  const __m256i places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i low = _mm256_and_si256(_mm256_set1_epi32((int)(bits & 0xff)), places);
  const __m256i high = _mm256_and_si256(_mm256_set1_epi32((int)(bits >> 8 & 0xff)), places);
  return {_mm256_cmpeq_epi32(low, places), _mm256_cmpeq_epi32(high, places)};
}

inline Lanes fill(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes add_product(Lanes a, Lanes b, Lanes to) {
  return {_mm256_fmadd_ps(a.low, b.low, to.low), _mm256_fmadd_ps(a.high, b.high, to.high)};
}
inline Lanes subtract_product(Lanes a, Lanes b, Lanes from) {
  return {_mm256_fnmadd_ps(a.low, b.low, from.low), _mm256_fnmadd_ps(a.high, b.high, from.high)};
}
// Where either is NaN: b.
inline Lanes larger(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes absolute(Lanes a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Lanes root(Lanes a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
inline Lanes rounded(Lanes a) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, nearest), _mm256_round_ps(a.high, nearest)};
}
inline __m256 power_of_two(__m256 power) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127)), 23));
}
inline Lanes times_power_of_two(Lanes a, Lanes power) {
  return {_mm256_mul_ps(a.low, power_of_two(power.low)), _mm256_mul_ps(a.high, power_of_two(power.high))};
}

inline Lanes keep(Whole, Lanes a) { return a; }
inline Lanes keep(Mask mask, Lanes a) {
  return {_mm256_and_ps(_mm256_castsi256_ps(mask.low), a.low), _mm256_and_ps(_mm256_castsi256_ps(mask.high), a.high)};
}
inline Lanes choose(Mask mask, Lanes yes, Lanes no) {
  return {_mm256_blendv_ps(no.low, yes.low, _mm256_castsi256_ps(mask.low)),
          _mm256_blendv_ps(no.high, yes.high, _mm256_castsi256_ps(mask.high))};
}
inline Lanes choose(Whole, Lanes yes, Lanes) { return yes; }
inline Mask positive(Lanes a) {
  const __m256 none = _mm256_setzero_ps();
  return {_mm256_castps_si256(_mm256_cmp_ps(a.low, none, _CMP_GT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.high, none, _CMP_GT_OQ))};
}
inline float sum(Lanes a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
inline float largest(Lanes a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

inline Lanes load(const float *from, Whole) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Lanes load(const float *from, Mask mask) {
  return {_mm256_maskload_ps(from, mask.low), _mm256_maskload_ps(from + 8, mask.high)};
}
inline void store(float *to, Whole, Lanes a) {
  _mm256_storeu_ps(to, a.low);
  _mm256_storeu_ps(to + 8, a.high);
}
inline void store(float *to, Mask mask, Lanes a) {
  _mm256_maskstore_ps(to, mask.low, a.low);
  _mm256_maskstore_ps(to + 8, mask.high, a.high);
}

inline Words fill_words(uint32_t value) { return {_mm256_set1_epi32((int)value), _mm256_set1_epi32((int)value)}; }
inline Words count_from(uint32_t first) {
  const __m256i steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_add_epi32(steps, _mm256_set1_epi32((int)first)),
          _mm256_add_epi32(steps, _mm256_set1_epi32((int)(first + 8)))};
}
inline Words operator^(Words a, Words b) {
  return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
inline void multiply_half(__m256i a, __m256i factor, __m256i &high, __m256i &low) {
  const __m256i even = _mm256_mul_epu32(a, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
inline void multiply(Words a, uint32_t factor, Words &high, Words &low) {
  const __m256i f = _mm256_set1_epi32((int)factor);
  Words h, l;  // `high` or `low` may alias `a`
  multiply_half(a.low, f, h.low, l.low);
  multiply_half(a.high, f, h.high, l.high);
  high = h;
  low = l;
}
inline uint32_t halves_at_least(Words a, uint16_t least) {
  const __m256i bound = _mm256_set1_epi16((short)least);
  const __m256i low = _mm256_cmpeq_epi16(_mm256_max_epu16(a.low, bound), a.low);
  const __m256i high = _mm256_cmpeq_epi16(_mm256_max_epu16(a.high, bound), a.high);
  // packs works within each half of a register: put the four quarters back in order.
  return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8));
}

}  // namespace
