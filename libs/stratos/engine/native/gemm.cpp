// C interface of gemm.h.
#include "gemm.h"

#include "codes.h"
#include "integers.h"
#include "region.h"

// k_quants.cpp
void region_k_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, bool is_float);

static constexpr int64_t SERIAL_PRODUCTS = 1 << 17;  // some microseconds: below, a second thread saves less than it can cost

template <class T, class O> static void multiply_scheme(const Linear *l, const T *x, O *out, int64_t rows) {
    switch (l->scheme) {
        case INT8_ROWS: return multiply_byte_rows<T, O, INT8_ROWS>(l, x, out, rows);
        case LLM_INT8_ROWS: return multiply_byte_rows<T, O, LLM_INT8_ROWS>(l, x, out, rows);
        case INT8_CODES: return multiply_code_rows<T, O, INT8_CODES>(l, x, out, rows);
        case INT4_CODES: return multiply_code_rows<T, O, INT4_CODES>(l, x, out, rows);
        case FP8_CODES: return multiply_code_rows<T, O, FP8_CODES>(l, x, out, rows);
        case MXFP4_CODES: return multiply_code_rows<T, O, MXFP4_CODES>(l, x, out, rows);
        case NF4_CODES: return multiply_code_rows<T, O, NF4_CODES>(l, x, out, rows);
        default: return multiply_rows(l, x, out, rows);
    }
}

static void region_part(int dtype, const Linear *l, const void *x, void *out, int64_t rows, bool is_float) {
    if (l->scheme >= Q4_K_CODES) return region_k_linear(dtype, l, x, out, rows, is_float);
    if (is_float)
        DISPATCH(dtype, multiply_scheme(l, (const T *)x, (float *)out, rows));
    else
        DISPATCH(dtype, multiply_scheme(l, (const T *)x, (T *)out, rows));
}

void region_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, bool is_float) {
    const int64_t element = is_float || dtype == 0 ? 4 : 2;
    for (char *to = (char *)out; l; to += l->n * element, l = l->next) region_part(dtype, l, x, to, rows, is_float);
}

template <class T> static void multiply_few(const Linear *l, int64_t panel, const T *x, T *out, int64_t rows) {
    multiply_panel(l, panel, x, out, rows);
}

#if defined(STRATOS_TILE_ORDER)
static void multiply_few(const Linear *l, int64_t panel, const bf16_t *x, bf16_t *out, int64_t rows) {
    multiply_tile_panel(l, panel, Rows{(const float *)x, l->k / 2, TileUnits::STEP, TILE_ROWS * l->k / 2}, out, rows, false);
}
static bool takes_units(int dtype, int64_t k) { return dtype != 1 || k % (2 * TileUnits::STEP) == 0; }
#else
static bool takes_units(int, int64_t) { return true; }
#endif

bool takes_few_rows(int dtype, const Linear *l) { return l->scheme == FLOATS && !l->next && takes_units(dtype, l->k); }

void few_rows_product(int dtype, const Linear *l, int64_t panel, const void *x, void *out, int64_t rows) {
    DISPATCH(dtype, multiply_few(l, panel, (const T *)x, (T *)out, rows));
}

extern "C" {

int64_t stratos_packed_bytes(int dtype, int64_t n, int64_t k) {
    DISPATCH(dtype, return packed_bytes<T>(n, k));
}

void stratos_pack(int dtype, const void *weight, void *out, int64_t n, int64_t k, int threads) {
    DISPATCH(dtype, pack((const T *)weight, (T *)out, n, k, threads));
}

// Columns of a panel: scales and zeros lie as [panel][groups][columns].
int64_t stratos_panel(void) { return PANEL; }

int64_t stratos_code_bytes(int64_t scheme, int64_t n, int64_t k) {
    return has_byte_rows(scheme) ? panels_of(n) * PANEL * byte_units_of(k) * BYTES_PER_UNIT : code_bytes(scheme, n, k);
}

// codes [n, k], one a byte.
void stratos_pack_codes(int64_t scheme, const uint8_t *codes, void *out, int64_t n, int64_t k, int threads) {
    if (has_byte_rows(scheme)) return pack_bytes(codes, (uint8_t *)out, n, k, threads);
    pack_codes(scheme, codes, (uint32_t *)out, n, k, threads);
}

// out is float where is_float, else of the compute type.
void stratos_linear(int dtype, const Linear *l, const void *x, void *out, int64_t rows, int is_float, int threads) {
    if (l->stride * l->k * rows < SERIAL_PRODUCTS) threads = 1;
#pragma omp parallel num_threads(threads)
    region_linear(dtype, l, x, out, rows, is_float);
}

}  // extern "C"
