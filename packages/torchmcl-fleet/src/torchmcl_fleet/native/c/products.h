/* The products of layers with a block of rows. Activations are rows of features, weights [inputs][outputs], both padded
   to whole vectors: lanes are outputs, of the gradient of the inputs they are inputs. No product needs a transposed
   matrix but that gradient, for which weights are transposed once per step. Included by step.h. */

/* Applied to a product before it is stored. NaN stays NaN. */
typedef enum { PLAIN, RELU, GATED } End;

#define MOST 8          /* rows of a tile */
#define SOME_INPUTS 80  /* whose weights stay in the L1 cache while the rows are read */
#define SOME_SLOPES 48  /* inputs that stay there while the gradients are read */

static int64_t up_lanes(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* The rows of a tile of some vectors: SUMS vectors fill the registers. */
ALWAYS int tall(int n_s) { return SUMS / n_s < MOST ? SUMS / n_s : MOST; }

/* The factors of a product: a(r, k) is rows[r][from + k], or, across, rows[k][from + r]. */
typedef struct {
    const float *const *rows;
    int64_t from;
} Factors;

/* A matrix of vectors, its rows `stride` apart. */
typedef struct {
    const float *at;
    int64_t stride;
} Vectors;

/* sum + factor * x, rounded once wherever the processor can: a compiler that decides for each tile whether to round twice
   would make the result of a row depend on how many rows there are. */
ALWAYS vec with_product(vec sum, float factor, vec x) {
#if VECTOR_BYTES == 64
    return (vec)_mm512_fmadd_ps(_mm512_set1_ps(factor), (__m512)x, (__m512)sum);
#elif VECTOR_BYTES == 32
    return (vec)_mm256_fmadd_ps(_mm256_set1_ps(factor), (__m256)x, (__m256)sum);
#else
    return sum + factor * x;
#endif
}

/* out[r] = start[r] + sum_k a(r, k) b[k] for n_r rows of n_s vectors; GATED: 0 where gate[r] is not positive. */
ALWAYS void tile(int n_r, int n_s, int across, End end, float *out, int64_t stride, Factors a, int64_t n_k, Vectors b,
                 Vectors start, const float *gate) {
    vec sum[MOST][WIDE];
    const float *own[MOST];
    for (int r = 0; r < n_r; r++) {
        if (!across) own[r] = a.rows[r] + a.from;
        for (int s = 0; s < n_s; s++)
            sum[r][s] = start.at ? load(start.at + r * start.stride + s * LANES) : (vec){0};
    }
#pragma GCC unroll 4
    for (int64_t k = 0; k < n_k; k++) {
        const float *x = b.at + k * b.stride, *factors = across ? a.rows[k] + a.from : 0;
        for (int r = 0; r < n_r; r++) {
            const float factor = across ? factors[r] : own[r][k];
            for (int s = 0; s < n_s; s++) sum[r][s] = with_product(sum[r][s], factor, load(x + s * LANES));
        }
    }
    for (int r = 0; r < n_r; r++)
        for (int s = 0; s < n_s; s++) {
            vec v = sum[r][s];
            if (end == RELU) v = (vec)((ivec)v & ~(v < 0.0f));
            if (end == GATED) v = (vec)((ivec)v & ~(load(gate + r * stride + s * LANES) <= 0.0f));
            store(out + r * stride + s * LANES, v);
        }
}

/* The same for any number of rows, in tiles of which the last two have nearly the same number. */
ALWAYS void panel(int n_s, int across, End end, float *out, int64_t stride, int64_t n_rows, Factors a, int64_t n_k,
                  Vectors b, Vectors start, const float *gate) {
    for (int64_t r = 0, n; r < n_rows; r += n) {
        const int64_t left = n_rows - r, full = tall(n_s);
        n = left >= 2 * full ? full : left > full ? (left + 1) / 2 : left;
        const Factors some = {across ? a.rows : a.rows + r, across ? a.from + r : a.from};
        const Vectors first = {start.at ? start.at + r * start.stride : 0, start.stride};
        const float *own = gate ? gate + r * stride : 0;
        switch (n) {
#define TILE_OF(n_r)                                                                                             \
    case n_r:                                                                                                 \
        if (n_r <= tall(n_s)) tile(n_r, n_s, across, end, out + r * stride, stride, some, n_k, b, first, own); \
        break;
            TILE_OF(1) TILE_OF(2) TILE_OF(3) TILE_OF(4) TILE_OF(5) TILE_OF(6) TILE_OF(7) TILE_OF(8)
        }
    }
}

/* The same for any number of columns, a few vectors at a time: their part of b stays in the L1 cache. */
ALWAYS void product(int across, End end, float *out, int64_t stride, int64_t n_rows, int64_t n_columns, Factors a,
                    int64_t n_k, Vectors b, Vectors start, const float *gate) {
    for (int64_t j = 0, n_s; j < n_columns; j += n_s * LANES) {
        n_s = up_lanes(n_columns - j) / LANES < WIDE ? up_lanes(n_columns - j) / LANES : WIDE;
        const Vectors some = {b.at + j, b.stride}, first = {start.at ? start.at + j : 0, start.stride};
        const float *own = gate ? gate + j : 0;
        switch (n_s) {
#define PANEL_OF(wide)                                                                                            \
    case wide:                                                                                                 \
        if (wide <= WIDE) panel(wide, across, end, out + j, stride, n_rows, a, n_k, some, first, own);          \
        break;
            PANEL_OF(1) PANEL_OF(2) PANEL_OF(3) PANEL_OF(4)
        }
    }
}

/* The outputs of a layer for its first n_used inputs; the bias is the row after the weights. */
static void layer(int relu, float *out, int64_t n_rows, const float *weight, int64_t n_out, int64_t n_in,
                  int64_t n_used, const float *const *in) {
    const int64_t stride = up_lanes(n_out), n_parts = n_used ? (n_used + SOME_INPUTS - 1) / SOME_INPUTS : 1;
    for (int64_t i = 0; i < n_parts; i++) {
        const int64_t from = n_used * i / n_parts, n = n_used * (i + 1) / n_parts - from;
        const Vectors some = {weight + from * stride, stride};
        const Vectors start = {i ? out : weight + n_in * stride, i ? stride : 0};
        if (relu && i + 1 == n_parts)
            product(0, RELU, out, stride, n_rows, n_out, (Factors){in, from}, n, some, start, 0);
        else
            product(0, PLAIN, out, stride, n_rows, n_out, (Factors){in, from}, n, some, start, 0);
    }
}

/* The gradient of the inputs of a layer from that of its first n_used outputs; its weights are `turned` to
   [outputs][inputs]. */
static void layer_back(float *back, int64_t n_rows, const float *turned, int64_t n_used, int64_t n_in,
                       const float *const *g, const float *gate) {
    const int64_t stride = up_lanes(n_in);
    product(0, GATED, back, stride, n_rows, n_in, (Factors){g, 0}, n_used, (Vectors){turned, stride}, (Vectors){0}, gate);
}

/* to[inputs][outputs] is the sum over rows of in g, or that sum is added to it. */
static void outer(float *to, const float *const *in, int64_t n_in, const float *g, int64_t n_out, int64_t n_rows,
                  int adds) {
    const int64_t stride = up_lanes(n_out);
    for (int64_t q = 0; q < n_in; q += SOME_SLOPES) {
        const int64_t n = n_in - q < SOME_SLOPES ? n_in - q : SOME_SLOPES;
        for (int64_t r = 0; r < n_rows && n_in - q > SOME_SLOPES; r++) /* the rows of a batch are scattered in memory */
            for (int64_t i = 0; i < SOME_SLOPES; i += 16) __builtin_prefetch(in[r] + q + SOME_SLOPES + i);
        const Vectors start = {adds ? to + q * stride : 0, stride};
        product(1, PLAIN, to + q * stride, stride, n, n_out, (Factors){in, q}, n_rows, (Vectors){g, stride}, start, 0);
    }
}

/* to is the sum of the rows of g, or that sum is added to it. */
static void add_rows(float *to, const float *g, int64_t n_out, int64_t n_rows, int adds) {
    const int64_t stride = up_lanes(n_out);
    for (int64_t j = 0; j < stride; j += LANES) {
        vec sum[4] = {adds ? load(to + j) : (vec){0}};
        int64_t r = 0;
        for (; r + 4 <= n_rows; r += 4)
            for (int i = 0; i < 4; i++) sum[i] += load(g + (r + i) * stride + j);
        for (; r < n_rows; r++) sum[0] += load(g + r * stride + j);
        store(to + j, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
}
