// The matrix products of the oneDNN library in Paddle's wheel: plain C, row-major, sums in float32.
#pragma once
#include <stdint.h>

struct Products {
  typedef int64_t size;
  typedef int (*OfFloat)(char, char, size, size, size, float, const float *, size, const float *, size, float, float *,
                         size);
  typedef int (*OfHalf)(char, char, size, size, size, float, const uint16_t *, size, const uint16_t *, size, float,
                        float *, size);
  OfFloat of_float;  // dnnl_sgemm
  OfHalf of_half;    // dnnl_gemm_bf16bf16f32
};

extern Products products;
extern unsigned refused_products;  // by oneDNN, since the library was opened

static inline void note_product(int status) {  // static: each level compiles it with instructions of its own
  if (status != 0) __atomic_add_fetch(&refused_products, 1, __ATOMIC_RELAXED);
}
