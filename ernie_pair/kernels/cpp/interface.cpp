// The functions of fused.h: which level runs is chosen once, by fused_open.
#include "fused.h"

#include <cpuid.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels.h"
#include "products.h"

Products products;
unsigned refused_products;

namespace {

int level = FUSED_NONE;

const FloatKernels &float_kernels() { return level == FUSED_AVX2 ? avx2_kernels : avx512_kernels; }

const HalfKernels &half_kernels() { return level == FUSED_AMX_BF16 ? amx_bf16_kernels : avx512_bf16_kernels; }

const LayerKernels &layer_kernels(const fused_layer *layer) {
  return layer->precision == FUSED_FLOAT32 ? float_kernels().layer : half_kernels().layer;
}

// Compares the refused products before and after a call: a call of another thread may fail this one, but never clear it.
class Refusals {
 public:
  int status() const { return count() == before ? 0 : 1; }

 private:
  static unsigned count() { return __atomic_load_n(&refused_products, __ATOMIC_RELAXED); }
  const unsigned before = count();
};

// Both products, tested on [1 2; 3 4] times itself: another version of the library may refuse them or differ.
bool float_products_work() {
  const float a[4] = {1, 2, 3, 4};
  float c[4] = {0, 0, 0, 0};
  return products.of_float('N', 'N', 2, 2, 2, 1.0f, a, 2, a, 2, 0.0f, c, 2) == 0 && c[0] == 7 && c[1] == 10 &&
         c[2] == 15 && c[3] == 22;
}

bool half_products_work() {
  const uint16_t a[4] = {0x3f80, 0x4000, 0x4040, 0x4080};
  float c[4] = {0, 0, 0, 0};
  return products.of_half('N', 'N', 2, 2, 2, 1.0f, a, 2, a, 2, 0.0f, c, 2) == 0 && c[0] == 7 && c[1] == 10 &&
         c[2] == 15 && c[3] == 22;
}

bool has_tiles() {
  constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_BF16) && (d & AMX_TILE);
}

// The tile registers are large, and Linux grants them to a process on request, for all its threads. It refuses if it is
// too old, or if the alternate signal stack of a thread is too small to save them.
bool are_tiles_granted() {
  constexpr int ASK_FOR_STATE = 0x1023, TILE_DATA = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
}

}  // namespace

int fused_version(void) { return FUSED_VERSION; }

int fused_processor_level(void) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return FUSED_NONE;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq"))
    return FUSED_AVX2;
  if (!__builtin_cpu_supports("avx512bf16")) return FUSED_AVX512;
  return has_tiles() ? FUSED_AMX_BF16 : FUSED_AVX512_BF16;
}

int fused_open(const char *onednn, int most) {
  level = FUSED_NONE;
  void *library = dlopen(onednn, RTLD_NOW);
  if (!library) return level;
  products.of_float = (Products::OfFloat)dlsym(library, "dnnl_sgemm");
  products.of_half = (Products::OfHalf)dlsym(library, "dnnl_gemm_bf16bf16f32");
  const int processor = fused_processor_level();
  const int wanted = processor < most ? processor : most;
  if (wanted <= FUSED_NONE || !products.of_float || !float_products_work()) return level;
  level = wanted;
  if (level == FUSED_AMX_BF16 && !(amx_bf16_kernels.pack && are_tiles_granted())) level = FUSED_AVX512_BF16;
  if (level == FUSED_AVX512_BF16 && !(avx512_bf16_kernels.pack && products.of_half && half_products_work()))
    level = FUSED_AVX512;
  return level;
}

int fused_level(void) { return level; }

size_t fused_packed_bytes(const fused_layer *layer) {
  return layer->precision == FUSED_FLOAT32 ? 0 : half_kernels().packed_bytes(layer);
}
size_t fused_saved_bytes(const fused_layer *layer) { return layer_kernels(layer).saved_bytes(layer); }
size_t fused_work_bytes(const fused_layer *layer) { return layer_kernels(layer).work_bytes(layer); }

void fused_layer_pack(const fused_layer *layer, const float *const *parameters, void *packed) {
  if (layer->precision != FUSED_FLOAT32) half_kernels().pack(layer, parameters, packed);
}

int fused_layer_forward(const fused_layer *layer, const float *x, const float *mask, const float *const *parameters,
                        const void *packed, void *saved, void *work, float *y) {
  const Refusals refusals;
  layer_kernels(layer).forward(layer, x, mask, parameters, packed, saved, work, y);
  return refusals.status();
}

int fused_layer_backward(const fused_layer *layer, const float *x, const float *const *parameters, const void *packed,
                         const void *saved, const float *dy, void *work, float *dx, float *const *gradients) {
  const Refusals refusals;
  layer_kernels(layer).backward(layer, x, parameters, packed, saved, dy, work, dx, gradients);
  return refusals.status();
}

size_t fused_embedding_saved_bytes(const fused_embedding *of) { return float_kernels().embedding_saved_bytes(of); }
size_t fused_embedding_work_bytes(const fused_embedding *of) { return float_kernels().embedding_work_bytes(of); }

void fused_embedding_forward(const fused_embedding *of, const int64_t *ids, const int64_t *types,
                             const int64_t *positions, const float *words, const float *places, const float *kinds,
                             const float *task, const float *scale, const float *shift, void *saved, float *y) {
  float_kernels().embedding_forward(of, ids, types, positions, words, places, kinds, task, scale, shift, saved, y);
}

void fused_embedding_backward(const fused_embedding *of, const int64_t *ids, const int64_t *types,
                              const int64_t *positions, const float *scale, const void *saved, const float *dy,
                              void *work, float *d_words, float *d_places, float *d_kinds, float *d_task, float *d_scale,
                              float *d_shift) {
  float_kernels().embedding_backward(of, ids, types, positions, scale, saved, dy, work, d_words, d_places, d_kinds,
                                     d_task, d_scale, d_shift);
}

size_t fused_product_work_bytes(int64_t m, int64_t n, int64_t k, int precision) {
  return precision == FUSED_FLOAT32 ? 0 : half_kernels().product_work_bytes({m, n, k, 1});
}

int fused_product(int64_t m, int64_t n, int64_t k, const float *a, const float *b, int precision, int threads, void *work,
                  float *c) {
  const Refusals refusals;
  const Dense dense = {m, n, k, threads};
  (precision == FUSED_FLOAT32 ? float_kernels().product : half_kernels().product)(dense, a, b, work, c);
  return refusals.status();
}

void fused_adamw_step(const fused_adamw *settings, int64_t count, const int64_t *sizes, const float *rates,
                      const float *decays, float *const *parameters, const float *const *gradients,
                      float *const *moments1, float *const *moments2) {
  float_kernels().adamw_step(settings, count, sizes, rates, decays, parameters, gradients, moments1, moments2);
}

double fused_sum_of_squares(int64_t count, const int64_t *sizes, const float *const *tensors, int threads) {
  return float_kernels().sum_of_squares(count, sizes, tensors, threads);
}
