// Sixteen lanes of float32 or of 32-bit words in one AVX-512 register: the basis of every kernel.
// lanes_avx2.h is its counterpart.
#pragma once
#include <immintrin.h>
#include <stdint.h>

namespace {

struct Lanes { __m512 v; };
struct Words { __m512i v; };
struct Whole {};  // the mask of all lanes, known at compile time
struct Mask { __mmask16 m; };
struct Half { uint16_t bits; };  // bfloat16

constexpr int COLUMNS = 4;  // vectors of columns that the small products hold in registers next to 6 rows

inline Mask first(int64_t count) { return {count >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1)}; }
inline Mask mask_of(uint32_t bits) { return {(__mmask16)bits}; }

inline Lanes fill(float value) { return {_mm512_set1_ps(value)}; }
inline Lanes zero() { return {_mm512_setzero_ps()}; }
inline Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes add_product(Lanes a, Lanes b, Lanes to) { return {_mm512_fmadd_ps(a.v, b.v, to.v)}; }
inline Lanes subtract_product(Lanes a, Lanes b, Lanes from) { return {_mm512_fnmadd_ps(a.v, b.v, from.v)}; }
// Where either is NaN: b.
inline Lanes larger(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes absolute(Lanes a) { return {_mm512_abs_ps(a.v)}; }
inline Lanes root(Lanes a) { return {_mm512_sqrt_ps(a.v)}; }
inline Lanes rounded(Lanes a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^power, for whole powers from -126 to 127
inline Lanes times_power_of_two(Lanes a, Lanes power) { return {_mm512_scalef_ps(a.v, power.v)}; }

inline Lanes keep(Whole, Lanes a) { return a; }
inline Lanes keep(Mask mask, Lanes a) { return {_mm512_maskz_mov_ps(mask.m, a.v)}; }
inline Lanes choose(Mask mask, Lanes yes, Lanes no) { return {_mm512_mask_mov_ps(no.v, mask.m, yes.v)}; }
inline Lanes choose(Whole, Lanes yes, Lanes) { return yes; }
inline Mask positive(Lanes a) { return {_mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_GT_OQ)}; }
inline float sum(Lanes a) { return _mm512_reduce_add_ps(a.v); }
inline float largest(Lanes a) { return _mm512_reduce_max_ps(a.v); }

inline Lanes load(const float *from, Whole) { return {_mm512_loadu_ps(from)}; }
inline Lanes load(const float *from, Mask mask) { return {_mm512_maskz_loadu_ps(mask.m, from)}; }
inline void store(float *to, Whole, Lanes a) { _mm512_storeu_ps(to, a.v); }
inline void store(float *to, Mask mask, Lanes a) { _mm512_mask_storeu_ps(to, mask.m, a.v); }

#ifdef FUSED_HALF
inline Lanes widened(__m256i halves) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
inline __m256i narrowed(Lanes a) { return (__m256i)_mm512_cvtneps_pbh(a.v); }
inline Lanes load(const Half *from, Whole) { return widened(_mm256_loadu_si256((const __m256i *)from)); }
inline Lanes load(const Half *from, Mask mask) { return widened(_mm256_maskz_loadu_epi16(mask.m, from)); }
inline void store(Half *to, Whole, Lanes a) { _mm256_storeu_si256((__m256i *)to, narrowed(a)); }
inline void store(Half *to, Mask mask, Lanes a) { _mm256_mask_storeu_epi16(to, mask.m, narrowed(a)); }
#endif

inline Words fill_words(uint32_t value) { return {_mm512_set1_epi32((int)value)}; }
// first, first + 1, ... first + 15
inline Words count_from(uint32_t first) {
  const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_add_epi32(steps, _mm512_set1_epi32((int)first))};
}
inline Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.v, b.v)}; }
// The 64 bits of a * factor.
inline void multiply(Words a, uint32_t factor, Words &high, Words &low) {
  const __m512i f = _mm512_set1_epi32((int)factor);
  const __m512i even = _mm512_mul_epu32(a.v, f), odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), f);
  high.v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  low.v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
// Bit i: is the i-th of the 32 halves of the words at least `least`?
inline uint32_t halves_at_least(Words a, uint16_t least) {
  return _mm512_cmpge_epu16_mask(a.v, _mm512_set1_epi16((short)least));
}

}  // namespace
