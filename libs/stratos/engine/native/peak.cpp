// What the units that multiply reach with every operand in a register: the measure of the kernels' speed.
#include "integer_simd.h"
#include "tile_order.h"

static constexpr int CHAINS = 12;  // enough sums in flight to hide the latency of one, few enough for all registers

#if defined(__AVX512F__)
#define IN_A_REGISTER "+v"
#else
#define IN_A_REGISTER "+x"
#endif

struct Fma {
    static constexpr int64_t FLOPS = 2 * LANES;
    static inline vec step(vec x, vec sum) { return vfma(x, x, sum); }
};

#if defined(__AVX512BF16__)
struct Pairs {
    static constexpr int64_t FLOPS = 4 * LANES;
    static inline vec step(vec x, vec sum) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)x); }
};
#endif

struct Bytes {
#if defined(__AVX512VNNI__)
    static constexpr int64_t FLOPS = 8 * LANES;
    static inline vec step(vec x, vec sum) {
        return as_floats(_mm512_dpbusd_epi32(_mm512_castps_si512(sum), _mm512_castps_si512(x), _mm512_castps_si512(x)));
    }
#else
    static constexpr int64_t FLOPS = 4 * LANES;
    static inline vec step(vec x, vec sum) {
        ivec a, b;
        memcpy(&a, &x, sizeof a), memcpy(&b, &sum, sizeof b);
        return as_floats(iadd(b, imadd16(a, a)));
    }
#endif
};

template <class U> static int64_t run(int64_t rounds) {
    vec sums[CHAINS], x = vset(1e-3f);
    for (int i = 0; i < CHAINS; i++) sums[i] = vset((float)i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) sums[i] = U::step(x, sums[i]);
        __asm__ volatile("" : IN_A_REGISTER(x));  // else a compiler may see the same product again and again
    }
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) __asm__ volatile("" : IN_A_REGISTER(sums[i]));
    return rounds * CHAINS * U::FLOPS;
}

#if defined(__AMX_BF16__)
template <class P> static int64_t run_tiles(int64_t rounds) {
    TileScope tiles;
    tiles.shape(16, 16, 16, 16);
    tiles_zero(), tile_zero<4>(), tile_zero<6>();
    for (int64_t round = 0; round < rounds; round++) {
        P::template multiply<0, 4, 6>(), P::template multiply<1, 4, 6>();
        P::template multiply<2, 4, 6>(), P::template multiply<3, 4, 6>();
    }
    return rounds * 4 * P::OPERATIONS;
}
#endif

extern "C" {

// Operations done in `rounds` loops of the float (0), bf16 (1) or byte (3) instruction that the products use.
int64_t stratos_peak(int dtype, int64_t rounds) {
#if defined(__AMX_BF16__)
    if (dtype) return dtype == 3 ? run_tiles<ByteProducts>(rounds) : run_tiles<PairProducts>(rounds);
#endif
    if (dtype == 3) return run<Bytes>(rounds);
#if defined(__AVX512BF16__) && !defined(STRATOS_TILE_ORDER)
    if (dtype) return run<Pairs>(rounds);
#endif
    return run<Fma>(rounds);
}

}  // extern "C"
