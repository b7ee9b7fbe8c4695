// What the units that multiply reach with every operand in a register: the measure of the kernels' speed.
#include "simd.h"
#include "tile_order.h"

static constexpr int CHAINS = 16;  // enough sums in flight to hide the latency of one

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

template <class U> static int64_t run(int64_t rounds) {
    vec sums[CHAINS], x = vset(1e-3f);
    for (int i = 0; i < CHAINS; i++) sums[i] = vset((float)i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            sums[i] = U::step(x, sums[i]);
            __asm__ volatile("" : "+x"(x));  // else a compiler may see the same sum again and again
        }
    }
    for (int i = 0; i < CHAINS; i++) __asm__ volatile("" ::"x"(sums[i]));
    return rounds * CHAINS * U::FLOPS;
}

#if defined(__AMX_BF16__)
static int64_t run_tiles(int64_t rounds) {
    TileScope tiles;
    tiles.shape(16, 16, 16, 16);
    tiles_zero(), tile_zero<4>(), tile_zero<6>();
    for (int64_t round = 0; round < rounds; round++) {
        tile_multiply<0, 4, 6>(), tile_multiply<1, 4, 6>(), tile_multiply<2, 4, 6>(), tile_multiply<3, 4, 6>();
    }
    return rounds * 4 * (2 * 16 * 16 * 32);
}
#endif

extern "C" {

// Floating-point operations done in `rounds` loops of the float (0) or bf16 (1) instruction that the products use.
int64_t stratos_peak(int dtype, int64_t rounds) {
#if defined(__AMX_BF16__)
    if (dtype) return run_tiles(rounds);
#elif defined(__AVX512BF16__) && !defined(STRATOS_TILE_ORDER)
    if (dtype) return run<Pairs>(rounds);
#endif
    return run<Fma>(rounds);
}

}  // extern "C"
