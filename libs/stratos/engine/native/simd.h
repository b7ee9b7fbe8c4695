// Vectors of floats for one instruction set, chosen by the compiler's flags: AVX-512 (16 lanes) or AVX2 (8 lanes).
//
// Elements are float, bf16_t or f16_t; arithmetic is always float.  Tails are masked, never scalar: an element is computed by
// the same instructions wherever it stands, so results do not depend on how rows are cut.  Reductions have one fixed
// order.  Everything is static: each translation unit is complete in itself.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

struct bf16_t {
    uint16_t bits;
};
struct f16_t {
    uint16_t bits;
};

static inline float to_float(float x) { return x; }
static inline float to_float(bf16_t x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline float to_float(f16_t x) { return _cvtsh_ss(x.bits); }

// What is larger rounds to infinity in T.
template <class T> static inline float largest() { return 3.4028235e38f; }
template <> inline float largest<bf16_t>() { return 3.3961773e38f; }
template <> inline float largest<f16_t>() { return 65519.996f; }

#if defined(__AVX512F__)

constexpr int LANES = 16;
typedef __m512 vec;

static inline vec vset(float x) { return _mm512_set1_ps(x); }
static inline vec vadd(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec vsub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec vmul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec vdiv(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec vmax(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec vfma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline __mmask16 first_lanes(int n) { return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1); }

static inline vec vload(const float *p) { return _mm512_loadu_ps(p); }
static inline vec vload(const float *p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
static inline void vstore(float *p, vec x) { _mm512_storeu_ps(p, x); }
static inline void vstore(float *p, vec x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }

static inline vec widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
static inline vec vload(const bf16_t *p) { return widen(_mm256_loadu_si256((const __m256i *)p)); }
static inline vec vload(const bf16_t *p, int n) { return widen(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }

static inline __m256i narrow_by_integers(vec x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc0)));
}
static inline __m256i narrow(vec x) {
#if defined(__AVX512BF16__)
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    return narrow_by_integers(x);
#endif
}
static inline void vstore(bf16_t *p, vec x) { _mm256_storeu_si256((__m256i *)p, narrow(x)); }
static inline void vstore(bf16_t *p, vec x, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(x)); }

static inline vec vload(const f16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vec vload(const f16_t *p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
static inline __m256i narrow_half(vec x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline void vstore(f16_t *p, vec x) { _mm256_storeu_si256((__m256i *)p, narrow_half(x)); }
static inline void vstore(f16_t *p, vec x, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow_half(x)); }

static inline float vsum(vec x) { return _mm512_reduce_add_ps(x); }
static inline float vmaximum(vec x) { return _mm512_reduce_max_ps(x); }

// x where begin <= lane < end, else fallback.
static inline vec vkeep(vec x, int begin, int end, vec fallback) {
    __mmask16 kept = end <= 0 ? 0 : first_lanes(end);
    if (begin > 0) kept &= (__mmask16)~first_lanes(begin);
    return _mm512_mask_mov_ps(fallback, kept, x);
}

// x where it is at most `limit`, else 0; also for NaN.
static inline vec vfinite(vec x, float limit) {
    __m512 size = _mm512_abs_ps(x);
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(size, vset(limit), _CMP_LE_OQ), x);
}

// 2^x, relative error below 2e-7; 0 below -126.
static inline vec vexp2(vec x) {
    vec whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = vsub(x, whole);
    vec p = vfma(vset(1.5403530e-4f), f, vset(1.3333558e-3f));
    p = vfma(p, f, vset(9.6181291e-3f));
    p = vfma(p, f, vset(5.5504109e-2f));
    p = vfma(p, f, vset(2.4022651e-1f));
    p = vfma(p, f, vset(6.9314718e-1f));
    p = vfma(p, f, vset(1.0f));
    // Lanes of 0 are left out of the scaling: a result that underflows costs a hundred cycles, and rows with banned
    // tokens have one in nearly every vector.
    __mmask16 is_small = _mm512_cmp_ps_mask(x, vset(-126.0f), _CMP_LT_OQ);
    return _mm512_maskz_scalef_ps(_knot_mask16(is_small), p, whole);
}

#else

constexpr int LANES = 8;
typedef __m256 vec;

static inline vec vset(float x) { return _mm256_set1_ps(x); }
static inline vec vadd(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec vsub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec vmul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec vdiv(vec a, vec b) { return _mm256_div_ps(a, b); }
static inline vec vmax(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec vfma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vec vload(const float *p) { return _mm256_loadu_ps(p); }
static inline vec vload(const float *p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
static inline void vstore(float *p, vec x) { _mm256_storeu_ps(p, x); }
static inline void vstore(float *p, vec x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }

static inline vec widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
static inline vec vload(const bf16_t *p) { return widen(_mm_loadu_si128((const __m128i *)p)); }
static inline vec vload(const bf16_t *p, int n) {
    if (n >= LANES) return vload(p);
    uint16_t lanes[8] = {0};
    for (int i = 0; i < n; i++) lanes[i] = p[i].bits;
    return widen(_mm_loadu_si128((const __m128i *)lanes));
}

static inline __m128i narrow(vec x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
static inline void vstore(bf16_t *p, vec x) { _mm_storeu_si128((__m128i *)p, narrow(x)); }
static inline void vstore(bf16_t *p, vec x, int n) {
    if (n >= LANES) return vstore(p, x);
    uint16_t lanes[8];
    _mm_storeu_si128((__m128i *)lanes, narrow(x));
    for (int i = 0; i < n; i++) p[i].bits = lanes[i];
}

static inline vec vload(const f16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vec vload(const f16_t *p, int n) {
    if (n >= LANES) return vload(p);
    uint16_t lanes[8] = {0};
    for (int i = 0; i < n; i++) lanes[i] = p[i].bits;
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)lanes));
}
static inline __m128i narrow_half(vec x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline void vstore(f16_t *p, vec x) { _mm_storeu_si128((__m128i *)p, narrow_half(x)); }
static inline void vstore(f16_t *p, vec x, int n) {
    if (n >= LANES) return vstore(p, x);
    uint16_t lanes[8];
    _mm_storeu_si128((__m128i *)lanes, narrow_half(x));
    for (int i = 0; i < n; i++) p[i].bits = lanes[i];
}

static inline float vsum(vec x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
static inline float vmaximum(vec x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}

static inline vec vkeep(vec x, int begin, int end, vec fallback) {
    __m256i kept = _mm256_andnot_si256(first_lanes(begin), first_lanes(end));
    return _mm256_blendv_ps(fallback, x, _mm256_castsi256_ps(kept));
}

static inline vec vfinite(vec x, float limit) {
    vec size = _mm256_andnot_ps(vset(-0.0f), x);
    return _mm256_and_ps(_mm256_cmp_ps(size, vset(limit), _CMP_LE_OQ), x);
}

static inline vec vexp2(vec x) {
    vec bounded = vmax(vset(-126.0f), x);  // a NaN is the second operand's
    vec whole = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = vsub(bounded, whole);
    vec p = vfma(vset(1.5403530e-4f), f, vset(1.3333558e-3f));
    p = vfma(p, f, vset(9.6181291e-3f));
    p = vfma(p, f, vset(5.5504109e-2f));
    p = vfma(p, f, vset(2.4022651e-1f));
    p = vfma(p, f, vset(6.9314718e-1f));
    p = vfma(p, f, vset(1.0f));
    // A NaN passes through f; the exponent is bounded for every other x below 127.
    __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
    vec scaled = vmul(p, _mm256_castsi256_ps(exponent));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, vset(-126.0f), _CMP_LT_OQ), scaled);
}

#endif

// weight + offset; a weight without an offset keeps the sign of its zero.
static inline vec vshifted(vec weight, float offset) { return offset == 0.0f ? weight : vadd(weight, vset(offset)); }

// 2^x where the result is a finite number: x is bounded to +-126.
static inline vec vexp2_bounded(vec x) {
    x = vmax(vset(-126.0f), x);
    return vexp2(vsub(vset(0), vmax(vsub(vset(0), x), vset(-126.0f))));
}

// Denormals stay, where `vstore` of bf16 may lose them.
template <class T> static inline void store_sum(T *to, vec x, int count) { vstore(to, x, count); }
#if defined(__AVX512BF16__)
template <> inline void store_sum(bf16_t *to, vec x, int count) {
    _mm256_mask_storeu_epi16(to, first_lanes(count), narrow_by_integers(x));
}
#endif

static inline vec vtanh(vec x) {
    return vsub(vset(1.0f), vdiv(vset(2.0f), vadd(vexp2_bounded(vmul(x, vset(2.88539008f))), vset(1.0f))));
}

constexpr int LINE_FLOATS = 16;  // 64 bytes

struct Fetch {  // what is wanted next, fetched while something else is computed; null is nothing
    const float *next = nullptr;
    int lines = 0;           // of `next`, every step of the computation
    bool is_stream = false;  // the operands at work follow one another in memory and are read once
};

template <int HINT> static inline void prefetch(const float *from, int lines) {
    for (int i = 0; i < lines; i++) _mm_prefetch((const char *)(from + i * LINE_FLOATS), (_mm_hint)HINT);
}
