// Paged attention over pages [block, layer, 2 (K, V), kv_head, token in block, row], for any mix of rows.  A row is
// head_dim numbers, or codes and a scale (kv_codes.h).
//
// stratos_attention does one layer of a step: q/k norm, rotation and the write of K and V into the pages (0 for what is not
// finite, with queries of that token that begin with NaN, so that its result is NaN: the request must end), a barrier, then
// attention by work items.  An item is one KV head and up to ITEM_ROWS query rows (tokens times the heads of the group) of
// one sequence.  It walks the KV in tiles of TILE keys that begin at multiples of TILE, in order, with an online softmax
// per tile, and reads K and V from the pages.  Therefore a token's result depends on its context alone: not on the chunk it
// came in, on its neighbours, on the number of threads, or on whether it is a prefill or a decode.
//
// Pages with one side (kv_stride 0) hold K alone, which is V as well: latent attention reads its values from it.
//
// Where a token sees the first tokens of its sequence beside a window (attention/sinks.py has the rule), tiles of those come
// first, with the query rotated a second time.  A first token that is in the window still counts as one of the window.
#include "attention.h"

#include <omp.h>

#include "decode_tile.h"
#include "region.h"

constexpr int ITEM_ROWS = 256;
constexpr int64_t SERIAL_WORK = 1 << 20;  // some microseconds: below, a second thread saves less than it can cost
constexpr float LOG2_E = 1.44269504089f;

// Elements of q, k and v of a token; no v where pages have one side.
static inline int64_t token_width(const Step *s) {
    return (s->num_heads + (s->kv_stride ? 2 : 1) * s->kv_heads) * s->head_dim;
}

static inline int64_t padded_dim(int64_t dim) { return (dim + WIDEST_SPAN - 1) / WIDEST_SPAN * WIDEST_SPAN; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// -- norm, rotation, write ---------------------------------------------------------------------------------------------

template <class T> static inline void norm_head(float *x, const T *weight, int64_t dim, float eps, float offset) {
    vec squares = vset(0);
    for (int64_t d = 0; d < dim; d += LANES) {
        vec u = vload(x + d, (int)(dim - d));
        squares = vfma(u, u, squares);
    }
    vec scale = vset(1.0f / __builtin_sqrtf(vsum(squares) / (float)dim + eps));
    for (int64_t d = 0; d < dim; d += LANES) {
        int n = (int)(dim - d);
        vstore(x + d, vmul(vmul(vload(x + d, n), scale), vshifted(vload(weight + d, n), offset)), n);
    }
}

template <class T> static inline void load_head(const T *head, float *x, int64_t dim) {
    for (int64_t d = 0; d < dim; d += LANES) vstore(x + d, vload(head + d, (int)(dim - d)), (int)(dim - d));
}

// x where it is a finite number of T, else 0, which makes a lane of `cuts` more than 0, or NaN.
template <class T> static inline vec cut(vec x, vec *cuts) {
    const vec kept = vfinite(x, largest<T>()), lost = vsub(x, kept);
    *cuts = vfma(lost, lost, *cuts);
    return kept;
}

template <class T> static inline void cut_head(const T *value, T *out, int64_t dim, vec *cuts) {
    vec own = vset(0);  // each head's: a sum over all of them is one long chain
    for (int64_t d = 0; d < dim; d += LANES)
        vstore(out + d, cut<T>(vload(value + d, (int)(dim - d)), &own), (int)(dim - d));
    *cuts = vadd(*cuts, own);
}

// x * cos + roll(x, dim / 2) * sin, the sign of the rotation folded into sin; where it is stored, `cuts` is what `cut` has.
template <class T>
static inline void rotate_head(const float *x, const float *cos, const float *sin, T *out, int64_t dim, vec *cuts) {
    int64_t half = dim / 2;
    vec own = vset(0);
    for (int64_t side = 0; side < 2; side++)
        for (int64_t d = 0; d < half; d += LANES) {
            int64_t at = side * half + d, other = (1 - side) * half + d;
            int n = (int)(half - d);
            vec y = vfma(vload(x + other, n), vload(sin + at, n), vmul(vload(x + at, n), vload(cos + at, n)));
            vstore(out + at, cuts ? cut<T>(y, &own) : y, n);
        }
    if (cuts) *cuts = vadd(*cuts, own);
}

template <class T, class P>
static void write_token(const Step *s, int64_t layer, int64_t token, T *qkv, const T *norm) {
    int64_t dim = s->head_dim, rotated = s->num_heads + s->kv_heads;
    T *heads = qkv + token * token_width(s);
    const int64_t place = s->slots[token] % s->head_stride / s->row;  // in the block
    P *block = (P *)s->pages + s->slots[token] + layer * s->layer_stride - place * s->row;
    const float *cos = s->cos + token * dim, *sin = s->sin + token * dim;
    float x[1024];
    T head[1024];
    vec cuts = vset(0);
    for (int64_t h = 0; h < rotated; h++) {
        bool is_key = h >= s->num_heads;
        load_head(heads + h * dim, x, dim);
        if (norm) norm_head(x, norm + h * dim, dim, s->norm_eps, s->norm_offset);
        rotate_head(x, cos, sin, is_key ? head : heads + h * dim, dim, is_key ? &cuts : nullptr);
        if (!is_key && s->placed) {
            T *placed = (T *)s->placed + (token * s->num_heads + h) * dim;
            rotate_head(x, s->placed_cos + token * dim, s->placed_sin + token * dim, placed, dim, nullptr);
        }
        if (!is_key) continue;
        write_head<true>(head, block + (h - s->num_heads) * s->head_stride, place, dim, s->is_packed);
    }
    for (int64_t h = 0; s->kv_stride && h < s->kv_heads; h++) {
        cut_head(heads + (rotated + h) * dim, head, dim, &cuts);
        write_head<false>(head, block + s->kv_stride + h * s->head_stride, place, dim, s->is_packed);
    }
    if (vsum(cuts) == 0.0f) return;
    for (int64_t h = 0; h < s->num_heads; h++) vstore(heads + h * dim, vset(__builtin_nanf("")), 1);
}

// -- attention -----------------------------------------------------------------------------------------------------------

struct Scratch {  // of one thread; offsets in floats
    float *keys, *values, *query, *out, *scores, *weights, *maxima, *totals, *wide, *placed;

    Scratch(char *base, int64_t dim) {
        int64_t padded = padded_dim(dim);
        keys = (float *)base;
        values = keys + padded * TILE;
        query = values + padded * TILE;
        out = query + ITEM_ROWS * padded;
        scores = out + ITEM_ROWS * padded;
        weights = scores + MOST_ROWS * TILE;
        maxima = weights + MOST_ROWS * TILE;
        totals = maxima + ITEM_ROWS;
        wide = totals + ITEM_ROWS;
        placed = wide + padded * TILE;
    }
    static int64_t bytes(int64_t dim) {
        return 4 * (padded_dim(dim) * (3 * TILE + 3 * ITEM_ROWS) + 2 * MOST_ROWS * TILE + 2 * ITEM_ROWS) + 64;
    }
};

// Query rows of an item as units: floats, or pairs of bf16 as they lie in memory; zeros up to a whole step.
template <class T, class U> static void copy_query(const T *head, float *units, int64_t dim) {
    if (U::PER_UNIT == 1) return load_head(head, units, dim);
    memcpy(units, head, dim * sizeof(T));
    const int64_t given = dim / U::PER_UNIT;
    memset(units + given, 0, (whole_steps<U>(given) - given) * sizeof(float));
}

// First tokens that a token sees apart from its window, which begins at `begin`.
static inline int64_t apart(const Step *s, int64_t begin) { return s->placed ? least(s->first_tokens, begin) : 0; }

struct Tiles {  // tiles of the keys that an item reads: those of `num_apart` first tokens, then those of its window
    int64_t begin, end, num_apart, num_of_apart, num;

    // Of tokens [position, end) of a sequence.
    Tiles(const Step *s, int64_t window, int64_t position, int64_t end)
        : begin(window ? most(0, position + 1 - window) : 0), end(end),
          num_apart(window ? apart(s, most(0, end - window)) : 0), num_of_apart((num_apart + TILE - 1) / TILE),
          num(num_of_apart + (end - 1) / TILE - begin / TILE + 1) {}
    bool is_apart(int64_t n) const { return n < num_of_apart; }
    int64_t at(int64_t n) const { return (is_apart(n) ? n : begin / TILE + n - num_of_apart) * TILE; }
    int64_t first_key(int64_t n) const { return is_apart(n) ? 0 : begin; }
    int64_t last_key(int64_t n) const { return is_apart(n) ? num_apart : end; }
};

struct Factors {  // of scores; cap: 0 is none
    float scale, cap;

    explicit Factors(const Step *s) : scale(s->scale * LOG2_E), cap(s->cap * LOG2_E) {}
    vec of(vec x) const {
        x = vmul(x, vset(scale));
        return cap == 0.0f ? x : vmul(vtanh(vdiv(x, vset(cap))), vset(cap));
    }
};

// The softmax of a row before it has seen a key: of its sink alone, where it has one.  NaN where the query begins with it:
// scores may lose it, as those with a cap do.
template <class T>
static inline void begin_softmax(const Step *s, int64_t layer, int64_t head, const T *query, float *maximum, float *total) {
    const float first = to_float(*query);
    *maximum = s->sinks ? s->sinks[layer * s->num_heads + head] * LOG2_E : -__builtin_inff();
    *total = first != first ? first : s->sinks ? 1.0f : 0.0f;
}

struct TileScales {  // of the rows of a tile that are codes; null: of none
    const float *keys = nullptr, *values = nullptr;
};

// Softmax weights of one row over a tile; returns the factor for what was summed before.
template <class U>
static float tile_weights(float *scores, float *weights, int columns, int begin, int end, const Factors &factor, float *maximum,
                          float *total, const TileScales &scales = TileScales()) {
    const vec hidden = vset(-__builtin_inff());
    vec seen = hidden;
    for (int c = 0; c < columns; c += LANES) {
        vec score = vload(scores + c);
        if (scales.keys) score = vmul(score, vload(scales.keys + c));
        vec x = vkeep(factor.of(score), begin - c, end - c, hidden);
        vstore(scores + c, x);
        seen = vmax(seen, x);
    }
    float before = *maximum, now = vmaximum(seen);
    if (!(now > before)) now = before;
    if (now == -__builtin_inff()) {  // no key was visible yet
        for (int c = 0; c < columns; c += LANES) store_weights<U>(weights, c, vset(0));
        return 1.0f;
    }
    float factors[LANES];
    vstore(factors, vexp2(vset(before - now)));
    vec sum = vset(0);
    for (int c = 0; c < columns; c += LANES) {
        vec p = vexp2(vsub(vload(scores + c), vset(now)));
        store_weights<U>(weights, c, scales.values ? vmul(p, vload(scales.values + c)) : p);
        sum = vadd(sum, p);
    }
    *maximum = now;
    *total = *total * factors[0] + vsum(sum);
    return factors[0];
}

struct Range {  // of keys, counted from the beginning of a tile
    int64_t begin, end;
};

// Keys of a tile that the token at `position` sees.
static inline Range seen_of_tile(const Step *s, int64_t window, int64_t position, int64_t tile, bool is_apart) {
    const int64_t begin = window ? most(0, position + 1 - window) : 0;
    if (is_apart) return Range{0, apart(s, begin) - tile};
    return Range{most(0, begin - tile), position + 1 - tile};
}

// Pointers to K of the keys of tile `n`, null for keys that the item does not see; returns how many columns are needed.
template <class P, int SPAN>
static int keys_of_tile(const Step *s, const P *head, const int64_t *table, const Tiles &tiles, int64_t n, const P **rows) {
    const int64_t tile = tiles.at(n), begin = tiles.first_key(n), end = tiles.last_key(n);
    int count = (int)(least(end, tile + TILE) - tile), columns = (count + SPAN - 1) / SPAN * SPAN;
    for (int k = 0; k < columns; k++) {
        int64_t key = tile + k;
        bool is_seen = key >= begin && key < end;
        rows[k] = is_seen ? head + table[key / s->block_size] * s->block_stride + key % s->block_size * s->row : 0;
    }
    return columns;
}

// Asks for K and V of a tile while another one is computed: they lie in pieces that the processor does not foresee.
template <class P> static inline void fetch_rows(const Step *s, const P *const *rows, int columns) {
    const int lines = (int)((s->row * sizeof(P) + 63) / 64);
    for (int k = 0; k < columns; k++) {
        if (!rows[k]) continue;
        prefetch<_MM_HINT_T1>((const float *)rows[k], lines);
        prefetch<_MM_HINT_T1>((const float *)(rows[k] + s->kv_stride), lines);
    }
}

template <class T> static void store_result(const float *sums, float total, T *target, int64_t dim) {
    // A weight of zero may turn -0 into 0, and how many of them a row meets depends on its neighbours: no -0 leaves.
    for (int64_t d = 0; d < dim; d += LANES)
        vstore(target + d, vadd(vdiv(vload(sums + d), vset(total)), vset(0)), (int)(dim - d));
}

template <class P> static inline void rows_of_values(const Step *s, const P **rows, int columns) {
    for (int k = 0; k < columns; k++)
        if (rows[k]) rows[k] += s->kv_stride;
}

// K and V of a tile as its products read them; `rows` are those of V when it returns.
template <class T, class U>
static void pack_tile(const Step *s, const T **rows, int columns, int64_t padded, const Scratch &t) {
    const int dim = (int)s->head_dim;
    if (s->is_packed)
        copy_keys<U>(rows, columns, dim, dim, t.keys);
    else
        pack_keys<T, U>(rows, columns, dim, t.keys);
    rows_of_values(s, rows, columns);
    pack_values<T>(rows, columns, dim, (int)padded, t.values);
}

template <class T, class U, class P>
static TileScales pack_codes_of_tile(const Step *s, const P **rows, int columns, int64_t padded, const Scratch &t,
                                     float (*scales)[TILE]) {
    const int dim = (int)s->head_dim;
    const T *wide[TILE];
    for (int side = 0; side < 2; side++) {
        if (side == 1) rows_of_values(s, rows, columns);
        if (s->is_packed) {
            for (int k = 0; k < columns; k += GROUP_KEYS)
                copy_scales(group_of(rows, k, columns, s->row), dim, scales[side] + k);
            if (side == 0)
                copy_keys<U>(rows, columns, dim, s->row, t.keys);
            else
                copy_values<U>(rows, columns, dim, s->row, t.values);
            continue;
        }
        widen_rows(rows, columns, dim, (T *)t.wide, padded, wide, scales[side]);
        if (side == 0)
            pack_keys<T, U>(wide, columns, dim, t.keys);
        else
            pack_values<T>(wide, columns, dim, (int)padded, t.values);
    }
    return TileScales{scales[0], scales[1]};
}

template <class T, class P>
static void run_item(const Step *s, int64_t layer, int64_t window, const Item *item, T *qkv, T *out, const Scratch &t) {
    typedef typename UnitsOf<T>::type U;
    const Row *row = s->rows + item->row;
    const int64_t dim = s->head_dim, padded = padded_dim(dim), group = s->num_heads / s->kv_heads;
    const int64_t num_rows = (item->last - item->first) * group, width = token_width(s);
    const int64_t position = row->start + item->first;
    const Tiles tiles(s, window, position, row->start + item->last);
    const P *head = (const P *)s->pages + layer * s->layer_stride + item->kv_head * s->head_stride;
    const Factors scale(s);
    const int num_blocks = (int)num_blocks_of<U>(num_rows), units = (int)whole_steps<U>(dim / U::PER_UNIT);
    ItemScope<U> scope;

    for (int64_t i = 0; i < num_rows; i++) {
        int64_t token = row->begin + item->first + i / group, q = item->kv_head * group + i % group;
        const T *query = qkv + token * width + q * dim;
        copy_query<T, U>(query, t.query + i * padded, dim);
        if (tiles.num_apart)
            copy_query<T, U>((const T *)s->placed + (token * s->num_heads + q) * dim, t.placed + i * padded, dim);
        begin_softmax(s, layer, q, query, t.maxima + i, t.totals + i);
    }
    memset(t.out, 0, num_rows * padded * sizeof(float));

    const P *keys[2][TILE];
    float scales[2][TILE];
    const int64_t *table = s->tables + row->table;
    int next_columns = keys_of_tile<P, U::SPAN>(s, head, table, tiles, 0, keys[0]);
    fetch_rows(s, keys[0], next_columns);
    for (int64_t n = 0, turn = 0; n < tiles.num; n++, turn = 1 - turn) {
        const int64_t tile = tiles.at(n);
        const bool is_apart = tiles.is_apart(n);
        const P **rows = keys[turn];
        const int columns = next_columns;
        if (n + 1 < tiles.num) {
            next_columns = keys_of_tile<P, U::SPAN>(s, head, table, tiles, n + 1, keys[1 - turn]);
            fetch_rows(s, keys[1 - turn], next_columns);
        }
        TileScales of_tile;
        if constexpr (is_code<P>)
            of_tile = pack_codes_of_tile<T, U>(s, rows, columns, padded, t, scales);
        else
            pack_tile<T, U>(s, rows, columns, padded, t);
        for (int b = 0; b < num_blocks; b++) {
            int64_t first = block_begin<U>(num_rows, b), last = block_begin<U>(num_rows, b + 1);
            int64_t lowest = position + first / group, highest = position + (last - 1) / group;
            const Range least_seen = seen_of_tile(s, window, lowest, tile, is_apart);
            const Range most_seen = seen_of_tile(s, window, highest, tile, is_apart);
            if (most_seen.end <= 0 || least_seen.begin >= TILE) continue;  // none of them sees the tile
            int count = (int)(last - first), seen = (int)least(columns, (most_seen.end - 1) / U::SPAN * U::SPAN + U::SPAN);
            const float *query = (is_apart ? t.placed : t.query) + first * padded;
            float factors[MOST_ROWS];
            multiply<U>(scope, count, t.keys, TILE, query, padded, units, t.scores, TILE, 0, seen, Fetch());
            for (int i = 0; i < count; i++) {
                const Range sight = seen_of_tile(s, window, position + (first + i) / group, tile, is_apart);
                factors[i] = tile_weights<U>(t.scores + i * TILE, t.weights + i * TILE, seen, (int)sight.begin,
                                             (int)least(TILE, most(0, sight.end)), scale, t.maxima + first + i,
                                             t.totals + first + i, of_tile);
            }
            multiply<U>(scope, count, t.values, padded, t.weights, TILE, seen / U::PER_UNIT, t.out + first * padded, padded,
                        factors, (int)padded, Fetch());
        }
    }
    for (int64_t i = 0; i < num_rows; i++) {
        int64_t token = row->begin + item->first + i / group, q = item->kv_head * group + i % group;
        store_result(t.out + i * padded, t.totals[i], out + (token * s->num_heads + q) * dim, dim);
    }
}

// Where K of the groups of a tile begins for KV head 0, in elements from the beginning of the layer.  A group that is not
// seen at all is another one's: its weights are zeros.  Returns how many are read.
template <class U>
static int groups_of_tile(const Step *s, const int64_t *table, const Tiles &tiles, int64_t n, int64_t *groups) {
    const int64_t tile = tiles.at(n), begin = tiles.first_key(n), end = tiles.last_key(n);
    const int count = (int)((least(end, tile + TILE) - tile + GROUP_KEYS - 1) / GROUP_KEYS);
    for (int g = 0; g < TILE / GROUP_KEYS; g++) {
        int64_t key = tile + least(g, count - 1) * GROUP_KEYS;
        key = most(key, begin / GROUP_KEYS * GROUP_KEYS);
        groups[g] = table[key / s->block_size] * s->block_stride + key % s->block_size * s->row;
    }
    constexpr int together = U::SPAN > GROUP_KEYS ? U::SPAN / GROUP_KEYS : 1;
    return (count + together - 1) / together * together;
}

static inline Tiles tiles_of_token(const Step *s, const Item *item, int64_t window) {  // of an item of one token
    const int64_t end = s->rows[item->row].start + item->last;
    return Tiles(s, window, end - 1, end);
}

// The first tile of the item that this thread computes after `item`, from the KV heads of `item` on.
template <class U>
static void first_groups(const Step *s, const Item *following, const Item *item, int64_t window, int64_t *groups) {
    const Row *row = s->rows + following->row;
    groups_of_tile<U>(s, s->tables + row->table, tiles_of_token(s, following, window), 0, groups);
    for (int g = 0; g < TILE / GROUP_KEYS; g++) groups[g] += (following->kv_head - item->kv_head) * s->head_stride;
}

template <class T> static inline TileGroups<T> groups_of_head(const T *head, const int64_t *now, const int64_t *next) {
    TileGroups<T> groups;
    for (int g = 0; g < TILE / GROUP_KEYS; g++) groups.now[g] = head + now[g], groups.next[g] = head + next[g];
    return groups;
}

struct Sight {  // of a token: keys of a tile that it sees, and the factors of its scores
    int begin, end;
    Factors scale;
};

// One tile for rows [first, first + rows) of a scratch, all of one KV head.
template <class U, class P>
static void attend_tile(ItemScope<U> &scope, const Step *s, const P *head, const int64_t *now, const int64_t *next,
                        int count, int64_t first, int rows, const Sight &sight, const float *query, const Scratch &t) {
    const int64_t dim = s->head_dim;
    const TileGroups<P> keys = groups_of_head(head, now, next), values = groups_of_head(head + s->kv_stride, now, next);
    float factors[U::TOKEN_ROWS], scales[2][TILE];
    TileScales of_tile;
    if constexpr (is_code<P>) {
        for (int g = 0; g < count; g++) {
            copy_scales(keys.now[g], dim, scales[0] + g * GROUP_KEYS);
            copy_scales(values.now[g], dim, scales[1] + g * GROUP_KEYS);
        }
        of_tile = TileScales{scales[0], scales[1]};
    }
    score_rows(scope, keys, count, rows, query + first * dim, dim, t.scores, t.keys);
    for (int i = 0; i < rows; i++)
        factors[i] = tile_weights<U>(t.scores + i * TILE, t.weights + i * TILE, count * GROUP_KEYS, sight.begin, sight.end,
                                     sight.scale, t.maxima + first + i, t.totals + first + i, of_tile);
    add_rows(scope, values, count, rows, dim, t.weights, factors, t.out + first * dim, t.values);
}

// A row of one token over packed pages: tiles outermost, so that the KV heads of a tile are read as they lie.
template <class T, class P>
static void run_token(const Step *s, int64_t layer, int64_t window, const Item *item, const Item *following, T *qkv, T *out,
                      const Scratch &t) {
    typedef typename UnitsOf<T>::type U;
    const Row *row = s->rows + item->row;
    const int64_t dim = s->head_dim, group = s->num_heads / s->kv_heads, num_rows = item->num_kv_heads * group;
    const int64_t token = row->begin + item->first, num_blocks = (group + U::TOKEN_ROWS - 1) / U::TOKEN_ROWS;
    const Tiles tiles = tiles_of_token(s, item, window);
    ItemScope<U> scope;
    const P *layer_pages = (const P *)s->pages + layer * s->layer_stride, *head;
    const T *query = qkv + token * token_width(s) + item->kv_head * group * dim;
    const T *placed = (const T *)s->placed + (token * s->num_heads + item->kv_head * group) * dim;
    for (int64_t i = 0; i < num_rows; i++) {
        copy_query<T, U>(query + i * dim, t.query + i * dim, dim);
        if (tiles.num_apart) copy_query<T, U>(placed + i * dim, t.placed + i * dim, dim);
        begin_softmax(s, layer, item->kv_head * group + i, query + i * dim, t.maxima + i, t.totals + i);
    }
    memset(t.out, 0, num_rows * dim * sizeof(float));

    int64_t groups[2][TILE / GROUP_KEYS];
    const int64_t *table = s->tables + row->table;
    int next_count = groups_of_tile<U>(s, table, tiles, 0, groups[0]);
    for (int64_t n = 0, turn = 0; n < tiles.num; n++, turn = 1 - turn) {
        const int count = next_count;
        const int64_t *now = groups[turn], *next = now;
        if (n + 1 < tiles.num) {
            next_count = groups_of_tile<U>(s, table, tiles, n + 1, groups[1 - turn]);
            next = groups[1 - turn];
        } else if (following) {
            first_groups<U>(s, following, item, window, groups[1 - turn]);
            next = groups[1 - turn];
        }
        const int64_t tile = tiles.at(n);
        const Sight sight{(int)most(0, tiles.first_key(n) - tile), (int)least(TILE, tiles.last_key(n) - tile), Factors(s)};
        const float *queries = tiles.is_apart(n) ? t.placed : t.query;
        for (int64_t h = 0; h < item->num_kv_heads; h++)
            for (int64_t b = 0; b < num_blocks; b++) {
                const int64_t first = group * b / num_blocks, rows = group * (b + 1) / num_blocks - first;
                head = layer_pages + (item->kv_head + h) * s->head_stride;
                attend_tile(scope, s, head, now, next, count, h * group + first, (int)rows, sight, queries, t);
            }
    }
    for (int64_t i = 0; i < num_rows; i++) {
        T *target = out + (token * s->num_heads + item->kv_head * group + i) * dim;
        restore_dimensions<P>(t.out + i * dim, dim);
        store_result(t.out + i * dim, t.totals[i], target, dim);
    }
}

template <class T, class P>
static void attend(const Step *s, int64_t layer, int64_t window, T *qkv, T *out, const T *norm) {
#pragma omp for schedule(static)
    for (int64_t token = 0; token < s->num_tokens; token++) write_token<T, P>(s, layer, token, qkv, norm);
    Scratch scratch(s->scratch + omp_get_thread_num() * s->scratch_bytes, s->head_dim);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < s->num_items; i++) {
        const Item *item = s->items + i;
        if (s->is_packed && item->last - item->first == 1) {
            const int64_t after = i + omp_get_num_threads();  // likely the next one of this thread
            const Item *following = after < s->num_items ? s->items + after : nullptr;
            run_token<T, P>(s, layer, window, item, following, qkv, out, scratch);
        } else {
            run_item<T, P>(s, layer, window, item, qkv, out, scratch);
        }
    }
}

template <class T>
static void attend_pages(const Step *s, int64_t layer, int64_t window, T *qkv, T *out, const T *norm) {
    if (s->codes == INT8_ROWS)
        attend<T, int8_code>(s, layer, window, qkv, out, norm);
    else if (s->codes == E4M3_ROWS)
        attend<T, e4m3_code>(s, layer, window, qkv, out, norm);
    else
        attend<T, T>(s, layer, window, qkv, out, norm);
}

void region_attention(const Step *s, int64_t layer, int64_t window, void *qkv, void *out, const void *norm) {
    DISPATCH(s->dtype, attend_pages(s, layer, window, (T *)qkv, (T *)out, (const T *)norm));
}

// -- once per step -------------------------------------------------------------------------------------------------------

static void sort_by_cost(Item *items, int64_t count) {  // Shell sort, most expensive first
    for (int64_t gap = count / 2; gap > 0; gap /= 2)
        for (int64_t i = gap; i < count; i++) {
            Item item = items[i];
            int64_t j = i;
            for (; j >= gap && items[j - gap].cost < item.cost; j -= gap) items[j] = items[j - gap];
            items[j] = item;
        }
}

// KV heads of an item of one token: all of them, or few enough that every thread has several items.
static int64_t kv_heads_of_token(const Step *s, int64_t group) {
    int64_t wanted = s->threads == 1 ? s->kv_heads : s->num_rows * s->kv_heads / (s->threads * 4);
    return most(1, least(least(wanted, s->kv_heads), ITEM_ROWS / group));
}

extern "C" {

// 1 where the kernels read packed pages of this shape.
int stratos_packs_keys(int64_t head_dim, int64_t block_size) {
    return head_dim % 32 == 0 && block_size % GROUP_KEYS == 0;
}

// Elements of a unit of such pages.
int stratos_key_unit(int dtype) { DISPATCH(dtype, return UnitsOf<T>::type::PER_UNIT); }

int64_t stratos_scratch_bytes(int64_t head_dim) { return Scratch::bytes(head_dim); }

int64_t stratos_step_bytes(void) { return sizeof(Step); }

void stratos_plan(Step *s) {
    int64_t group = s->num_heads / s->kv_heads, total = s->num_tokens * s->num_heads, count = 0;
    // Items small enough for every thread to get several, large enough to pay for packing.
    int64_t rows = most(48, least(ITEM_ROWS, total / (s->threads * 4)));
    int64_t tokens = most(1, least(rows, ITEM_ROWS) / group);
    int64_t heads_of_token = kv_heads_of_token(s, group);
    for (int64_t r = 0; r < s->num_rows; r++) {
        const Row *row = s->rows + r;
        for (int64_t i = 0; i < row->num_tokens; i++) {
            int64_t at = row->start + i;
            s->slots[row->begin + i] = s->tables[row->table + at / s->block_size] * s->block_stride +
                                       at % s->block_size * s->row;
        }
        for (int64_t first = 0; first < row->num_tokens; first += tokens) {
            int64_t last = least(row->num_tokens, first + tokens);
            int64_t cost = (row->start + last) * ((last - first) * group + 8);  // 8: packing costs about as many rows
            int64_t heads = s->is_packed && last - first == 1 ? heads_of_token : 1;
            for (int64_t h = 0; h < s->kv_heads; h += heads) {
                int64_t here = least(heads, s->kv_heads - h);
                s->items[count++] = Item{r, h, here, first, last, cost * here};
            }
        }
    }
    int64_t work = 0;
    for (int64_t i = 0; i < count; i++) work += s->items[i].cost;
    if (work * s->head_dim < SERIAL_WORK) s->threads = 1;
    sort_by_cost(s->items, count);
    s->num_items = count;
}

void stratos_attention(const Step *s, int64_t layer, int64_t window, void *qkv, void *out, const void *norm) {
#pragma omp parallel num_threads((int)s->threads)
    region_attention(s, layer, window, qkv, out, norm);
}

}  // extern "C"
