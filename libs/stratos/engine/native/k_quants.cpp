// Products of K-quants and NVFP4 for gemm.cpp, in a unit of their own: templates of many sizes take long to compile.
#include "k_quants.h"

#include "region.h"

template <class T, class O> static void multiply_k_scheme(const Linear *l, const T *x, O *out, int64_t rows) {
    switch (l->scheme) {
        case Q4_K_CODES: return multiply_k_rows<T, O, Q4_K_CODES>(l, x, out, rows);
        case Q5_K_CODES: return multiply_k_rows<T, O, Q5_K_CODES>(l, x, out, rows);
        case Q6_K_CODES: return multiply_k_rows<T, O, Q6_K_CODES>(l, x, out, rows);
        default: return multiply_k_rows<T, O, NVFP4_CODES>(l, x, out, rows);
    }
}

void region_k_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, bool is_float) {
    if (is_float)
        DISPATCH(dtype, multiply_k_scheme(l, (const T *)x, (float *)out, rows));
    else
        DISPATCH(dtype, multiply_k_scheme(l, (const T *)x, (T *)out, rows));
}

extern "C" {

// codes [n, k], one a byte; k is a multiple of 256, with NVFP4 of 32.
int64_t stratos_k_code_bytes(int64_t scheme, int64_t n, int64_t k) { return k_code_bytes(scheme, n, k); }

void stratos_pack_k_codes(int64_t scheme, const uint8_t *codes, void *out, int64_t n, int64_t k, int threads) {
    pack_k_codes(scheme, codes, (uint32_t *)out, n, k, threads);
}

}  // extern "C"
