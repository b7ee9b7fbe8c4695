// Vectors of 32-bit integers beside those of floats of simd.h: as many lanes, for the same instruction set.
#pragma once

#include "simd.h"

#if defined(__AVX512F__)
typedef __m512i ivec;
static inline ivec iload(const void *p) { return _mm512_loadu_si512(p); }
static inline void istore(void *p, ivec x) { _mm512_storeu_si512(p, x); }
static inline ivec iset(int32_t x) { return _mm512_set1_epi32(x); }
static inline ivec iadd(ivec a, ivec b) { return _mm512_add_epi32(a, b); }
static inline ivec isub(ivec a, ivec b) { return _mm512_sub_epi32(a, b); }
static inline ivec iand(ivec a, ivec b) { return _mm512_and_si512(a, b); }
static inline ivec imadd16(ivec a, ivec b) { return _mm512_madd_epi16(a, b); }
template <int N> static inline ivec ishr16(ivec x) { return _mm512_srli_epi16(x, N); }
template <int N> static inline ivec ishl16(ivec x) { return _mm512_slli_epi16(x, N); }
static inline ivec ishr16_by(ivec x, int n) { return _mm512_srl_epi16(x, _mm_cvtsi32_si128(n)); }
template <int N> static inline ivec ishr(ivec x) { return _mm512_srli_epi32(x, N); }
static inline ivec ishr_by(ivec x, int n) { return _mm512_srl_epi32(x, _mm_cvtsi32_si128(n)); }
template <int N> static inline ivec ishl(ivec x) { return _mm512_slli_epi32(x, N); }
template <int N> static inline ivec ishr_signed(ivec x) { return _mm512_srai_epi32(x, N); }
static inline ivec ior(ivec a, ivec b) { return _mm512_or_si512(a, b); }
static inline vec as_floats(ivec x) { return _mm512_castsi512_ps(x); }
static inline ivec load_bytes(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline ivec load_signed_bytes(const uint8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline vec where_less(ivec a, ivec b, vec then, vec otherwise) {
    return _mm512_mask_mov_ps(otherwise, _mm512_cmplt_epi32_mask(a, b), then);
}
static inline vec to_floats(ivec x) { return _mm512_cvtepi32_ps(x); }
static inline ivec to_integers(vec x) { return _mm512_cvtps_epi32(x); }  // to nearest, even
#else
typedef __m256i ivec;
static inline ivec iload(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void istore(void *p, ivec x) { _mm256_storeu_si256((__m256i *)p, x); }
static inline ivec iset(int32_t x) { return _mm256_set1_epi32(x); }
static inline ivec iadd(ivec a, ivec b) { return _mm256_add_epi32(a, b); }
static inline ivec isub(ivec a, ivec b) { return _mm256_sub_epi32(a, b); }
static inline ivec iand(ivec a, ivec b) { return _mm256_and_si256(a, b); }
static inline ivec imadd16(ivec a, ivec b) { return _mm256_madd_epi16(a, b); }
template <int N> static inline ivec ishr16(ivec x) { return _mm256_srli_epi16(x, N); }
template <int N> static inline ivec ishl16(ivec x) { return _mm256_slli_epi16(x, N); }
static inline ivec ishr16_by(ivec x, int n) { return _mm256_srl_epi16(x, _mm_cvtsi32_si128(n)); }
template <int N> static inline ivec ishr(ivec x) { return _mm256_srli_epi32(x, N); }
static inline ivec ishr_by(ivec x, int n) { return _mm256_srl_epi32(x, _mm_cvtsi32_si128(n)); }
template <int N> static inline ivec ishl(ivec x) { return _mm256_slli_epi32(x, N); }
template <int N> static inline ivec ishr_signed(ivec x) { return _mm256_srai_epi32(x, N); }
static inline ivec ior(ivec a, ivec b) { return _mm256_or_si256(a, b); }
static inline vec as_floats(ivec x) { return _mm256_castsi256_ps(x); }
static inline ivec load_bytes(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
static inline ivec load_signed_bytes(const uint8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
static inline vec where_less(ivec a, ivec b, vec then, vec otherwise) {
    return _mm256_blendv_ps(otherwise, then, _mm256_castsi256_ps(_mm256_cmpgt_epi32(b, a)));
}
static inline vec to_floats(ivec x) { return _mm256_cvtepi32_ps(x); }
static inline ivec to_integers(vec x) { return _mm256_cvtps_epi32(x); }
#endif

// Numbers of the e2m1 codes in the lowest 4 bits: a sign, 2 bits of exponent, 1 of fraction; 0 to 6 by halves and more.
static inline vec e2m1_floats(ivec code) {
    const ivec size = iand(code, iset(7));
    const vec normal = as_floats(iadd(ishl<22>(size), iset(126 << 23)));
    const vec number = where_less(size, iset(2), vmul(to_floats(size), vset(0.5f)), normal);
    ivec bits;
    memcpy(&bits, &number, sizeof bits);
    return as_floats(ior(ishl<28>(iand(code, iset(8))), bits));
}

// Numbers of NF4 by their code: quantiles of the normal distribution, as bitsandbytes has them.
alignas(64) static const float NF4_FLOATS[16] = {
    -1.0f, -0.6961928f, -0.52507305f, -0.3949175f,
    -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
    0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f,
    0.44070983f, 0.562617f, 0.72295684f, 1.0f};

// Numbers of the NF4 codes in the lowest 4 bits; what is above them does not matter.
static inline vec nf4_floats(ivec code) {
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps(code, vload(NF4_FLOATS));
#else
    const vec low = _mm256_permutevar8x32_ps(vload(NF4_FLOATS), code);
    const vec high = _mm256_permutevar8x32_ps(vload(NF4_FLOATS + 8), code);
    return _mm256_blendv_ps(low, high, as_floats(ishl<28>(code)));
#endif
}

// Numbers of the e4m3 codes in the lowest bytes: 4 bits of exponent, 3 of fraction.
static inline vec e4m3_floats(ivec code) {
    const ivec size = iand(code, iset(0x7f));
    const vec normal = as_floats(iadd(ishl<20>(size), iset(120 << 23)));
    const vec number = where_less(size, iset(8), vmul(to_floats(size), vset(0x1p-9f)), normal);
    ivec bits;
    memcpy(&bits, &number, sizeof bits);
    return as_floats(ior(ishl<24>(iand(code, iset(0x80))), bits));
}
