// The weights of a layer as the products read them: in float32 the parameters themselves; in Half copies, which are
// packed whenever the parameters may have changed.
#pragma once
#include "fused.h"
#ifdef FUSED_TILES
#include "tile_packing.h"
#else
#include "basics.h"
#endif

namespace {

// A matrix [height, width], stored in rows.
template <class T>
struct Weight {
  static constexpr int64_t STRIP = INT64_MAX;  // the library prefers few products
  const T *at;
  int64_t height, width, step;

  // c [m, width] = a w
  void multiply(int64_t m, const T *a, int64_t lda, float *c, int64_t ldc) const {
    multiply_strip(0, width, m, a, lda, c, ldc);
  }
  // c [m, columns]: those of a w from column j on.
  void multiply_strip(int64_t j, int64_t columns, int64_t m, const T *a, int64_t lda, float *c, int64_t ldc) const {
    product(m, columns, height, a, lda, at + j, step, false, c, ldc);
  }
  // c [m, height] = a times the transposed w, or c += that
  void multiply_back(int64_t m, const T *a, int64_t lda, bool add, float *c, int64_t ldc) const {
    product<false, true>(m, height, width, a, lda, at, step, add, c, ldc);
  }
  void multiply_back_strip(int64_t j, int64_t columns, int64_t m, const T *a, int64_t lda, float *c, int64_t ldc) const {
    product<false, true>(m, columns, width, a, lda, at + j * step, step, false, c, ldc);
  }
};

// The workspace of one thread, for a part of up to `side` rows and columns.
template <class T>
inline size_t weight_gradient_work_bytes(int64_t, int64_t) {
  return 0;
}

// c [height, width] = the transposed a [depth, height] times b [depth, width].
template <class T>
inline void weight_gradient(int64_t height, int64_t width, int64_t depth, const T *a, int64_t a_step, const T *b,
                            int64_t b_step, float *c, int64_t c_step, void *) {
  product<true, false>(height, width, depth, a, a_step, b, b_step, false, c, c_step);
}

template <class T>
struct Weights;

template <>
struct Weights<float> {
  static constexpr bool ARE_JOINED = false;  // queries, keys and values in one product
  Weight<float> q, k, v, qkv, out, up, down;

  Weights(const fused_layer &layer, const float *const *p, const void *) {
    const int64_t D = layer.hidden, F = layer.inner;
    q = {p[FUSED_WQ], D, D, D};
    k = {p[FUSED_WK], D, D, D};
    v = {p[FUSED_WV], D, D, D};
    out = {p[FUSED_WO], D, D, D};
    up = {p[FUSED_W1], D, F, F};
    down = {p[FUSED_W2], F, D, D};
  }
};

#if defined(FUSED_TILES)

// In tiles, one after another, for both directions.
template <>
struct Weight<Half> {
  static constexpr int64_t STRIP = 8 * PANEL;  // of 256 rows in float32: 256 KB, a part of the cache
  Half *tiles, *turned;
  int64_t height, width;

  Weight() = default;
  Weight(Space &space, int64_t height, int64_t width)
      : tiles(space.take<Half>(packed_halves(height, width))), turned(space.take<Half>(packed_halves(width, height))),
        height(height), width(width) {}
  // Call it in a parallel region.
  void pack(const float *from) const {
#pragma omp for schedule(static) nowait
    for (int64_t j = 0; j < width; j += PANEL)
      pack_panel(from, width, height, width, j, tiles + j / PANEL * panel_halves(height));
#pragma omp for schedule(static) nowait
    for (int64_t j = 0; j < height; j += PANEL)
      pack_turned_panel(from, width, width, height, j, turned + j / PANEL * panel_halves(width));
  }
  void multiply(int64_t m, const Half *a, int64_t lda, float *c, int64_t ldc) const {
    multiply_strip(0, width, m, a, lda, c, ldc);
  }
  void multiply_strip(int64_t j, int64_t columns, int64_t m, const Half *a, int64_t lda, float *c, int64_t ldc) const {
    multiply_packed(m, columns, height, a, lda, tiles + j / PANEL * panel_halves(height), false, c, ldc);
  }
  void multiply_back(int64_t m, const Half *a, int64_t lda, bool add, float *c, int64_t ldc) const {
    multiply_packed(m, height, width, a, lda, turned, add, c, ldc);
  }
  void multiply_back_strip(int64_t j, int64_t columns, int64_t m, const Half *a, int64_t lda, float *c,
                           int64_t ldc) const {
    multiply_packed(m, columns, width, a, lda, turned + j / PANEL * panel_halves(width), false, c, ldc);
  }
};

template <>
struct Weights<Half> {
  static constexpr bool ARE_JOINED = false;
  Weight<Half> q, k, v, qkv, out, up, down;
  size_t bytes;

  Weights(const fused_layer &layer, const float *const *, const void *packed) {
    Space space(packed);
    const int64_t D = layer.hidden, F = layer.inner;
    q = Weight<Half>(space, D, D);
    k = Weight<Half>(space, D, D);
    v = Weight<Half>(space, D, D);
    out = Weight<Half>(space, D, D);
    up = Weight<Half>(space, D, F);
    down = Weight<Half>(space, F, D);
    bytes = space.bytes();
  }
  // Call it in a parallel region.
  void pack(const float *const *p) const {
    q.pack(p[FUSED_WQ]);
    k.pack(p[FUSED_WK]);
    v.pack(p[FUSED_WV]);
    out.pack(p[FUSED_WO]);
    up.pack(p[FUSED_W1]);
    down.pack(p[FUSED_W2]);
  }
};

template <>
inline size_t weight_gradient_work_bytes<Half>(int64_t side, int64_t depth) {
  return (size_t)turned_work_halves(side, side, depth) * sizeof(Half);
}

template <>
inline void weight_gradient(int64_t height, int64_t width, int64_t depth, const Half *a, int64_t a_step, const Half *b,
                            int64_t b_step, float *c, int64_t c_step, void *work) {
  multiply_turned(height, width, depth, a, a_step, b, b_step, c, c_step, (Half *)work);
}

#elif defined(FUSED_HALF)

// In rows, with queries, keys and values side by side.
template <>
struct Weights<Half> {
  static constexpr bool ARE_JOINED = true;
  Weight<Half> q, k, v, qkv, out, up, down;
  size_t bytes;

  Weights(const fused_layer &layer, const float *const *, const void *packed) {
    Space space(packed);
    const int64_t D = layer.hidden, F = layer.inner;
    const Half *joined = space.take<Half>(D * 3 * D);
    q = {joined, D, D, 3 * D};
    k = {joined + D, D, D, 3 * D};
    v = {joined + 2 * D, D, D, 3 * D};
    qkv = {joined, D, 3 * D, 3 * D};
    out = {space.take<Half>(D * D), D, D, D};
    up = {space.take<Half>(D * F), D, F, F};
    down = {space.take<Half>(F * D), F, D, D};
    bytes = space.bytes();
  }
  // Call it in a parallel region.
  void pack(const float *const *p) const {
    struct Part { const Weight<Half> &to; const float *from; };
    const Part parts[] = {{q, p[FUSED_WQ]},     {k, p[FUSED_WK]},  {v, p[FUSED_WV]},
                          {out, p[FUSED_WO]}, {up, p[FUSED_W1]}, {down, p[FUSED_W2]}};
    for (const Part &part : parts) {
#pragma omp for schedule(static) nowait
      for (int64_t row = 0; row < part.to.height; row++)
        convert(part.from + row * part.to.width, part.to.width, (Half *)part.to.at + row * part.to.step);
    }
  }
};

#endif

#ifdef FUSED_HALF
inline size_t layer_packed_bytes(const fused_layer *layer) { return Weights<Half>(*layer, nullptr, nullptr).bytes; }

// Pack the parameters, as they are now, for Weights.
inline void layer_pack(const fused_layer *layer, const float *const *parameters, void *packed) {
  const Weights<Half> weights(*layer, parameters, packed);
#pragma omp parallel num_threads(layer->threads)
  {
    const TinyIsZero tiny_is_zero;
    weights.pack(parameters);
  }
}
#endif

}  // namespace
