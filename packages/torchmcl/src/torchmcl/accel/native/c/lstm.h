/* Both directions of an LSTM over many sequences, a tile of them at a time through all their steps.

   A panel of the weights holds the four gates of LANES units, so that a step of a few sequences and these units is one
   product, and the gates are computed in registers. A panel and the rows of a tile stay in the L1 cache. */

#if defined(__x86_64__) && VECTOR_BYTES < 64
#define TOGETHER 2 /* sequences of a product: with four gates they fill half of the registers */
#else
#define TOGETHER 4
#endif
#define TILE 32

/* One step of TOGETHER sequences and LANES units: `rows` are [x, h before], n_k numbers each; cells and h are of Hp. */
ALWAYS void cells_of(const vec *weight, const vec *bias, const float *rows, int64_t n_k, float *cells, float *h,
                     int64_t stride) {
    vec sum[TOGETHER][4];
    for (int r = 0; r < TOGETHER; r++)
        for (int s = 0; s < 4; s++) sum[r][s] = bias[s];
#pragma GCC unroll 8
    for (int64_t k = 0; k < n_k; k++)
        for (int r = 0; r < TOGETHER; r++) {
            const float factor = rows[r * n_k + k];
            for (int s = 0; s < 4; s++) sum[r][s] += factor * weight[4 * k + s];
        }
    for (int r = 0; r < TOGETHER; r++) { /* e^-i, e^-f, e^-2g, e^-o: one division for each product of two of them */
        const vec i = bounded_powers(sum[r][0] * -1.4426950f), f = bounded_powers(sum[r][1] * -1.4426950f);
        const vec g = bounded_powers(sum[r][2] * -2.8853901f), o = bounded_powers(sum[r][3] * -1.4426950f);
        vec *cell = (vec *)(cells + r * stride);
        const vec next = *cell / (1.0f + f) + (1.0f - g) / ((1.0f + i) * (1.0f + g));
        const vec c = bounded_powers(next * -2.8853901f);
        *cell = next;
        *(vec *)(h + r * stride) = (1.0f - c) / ((1.0f + o) * (1.0f + c));
    }
}

static int64_t padded_units(int64_t n_hidden) { return (n_hidden + LANES - 1) / LANES * LANES; }

static int64_t lstm_lanes(void) { return LANES; }

/* The number of floats of scratch memory. */
static int64_t lstm_scratch(const Recurrence *lstm) {
    return TILE * (2 * padded_units(lstm->n_hidden) + lstm->n_in + lstm->n_hidden);
}

/* The sequences [first, first + n) of one direction, n <= TILE. */
static void lstm_tile(const Recurrence *lstm, int64_t direction, int64_t first, int64_t n) {
    const int64_t n_in = lstm->n_in, n_h = lstm->n_hidden, wide = padded_units(n_h), n_k = n_in + n_h;
    const int64_t n_panels = wide / LANES, n_steps = lstm->n_steps;
    float *cells = lstm->scratch, *h = cells + TILE * wide, *rows = h + TILE * wide;
    const vec *weights = (const vec *)lstm->weights + direction * n_panels * n_k * 4;
    const vec *bias = (const vec *)lstm->bias + direction * n_panels * 4;
    const int64_t used = (n + TOGETHER - 1) / TOGETHER * TOGETHER;
    memset(lstm->scratch, 0, (size_t)lstm_scratch(lstm) * sizeof(float)); /* rows beyond the last sequence stay 0 */
    for (int64_t step = 0; step < n_steps; step++) {
        const int64_t t = direction ? n_steps - 1 - step : step;
        for (int64_t r = 0; r < n; r++) {
            const int64_t outer = (first + r) / lstm->n_inner, inner = (first + r) % lstm->n_inner;
            const int64_t at = outer * lstm->outer_stride + inner * lstm->inner_stride + t * lstm->step_stride;
            memcpy(rows + r * n_k, lstm->inputs + at * n_in, (size_t)n_in * sizeof(float));
        }
        for (int64_t p = 0; p < n_panels; p++)
            for (int64_t r = 0; r < used; r += TOGETHER)
                cells_of(weights + p * n_k * 4, bias + p * 4, rows + r * n_k, n_k, cells + r * wide + p * LANES,
                         h + r * wide + p * LANES, wide);
        for (int64_t r = 0; r < n; r++) {
            const int64_t outer = (first + r) / lstm->n_inner, inner = (first + r) % lstm->n_inner;
            const int64_t at = outer * lstm->outer_stride + inner * lstm->inner_stride + t * lstm->step_stride;
            memcpy(rows + r * n_k + n_in, h + r * wide, (size_t)n_h * sizeof(float));
            memcpy(lstm->outputs + (2 * at + direction) * n_h, h + r * wide, (size_t)n_h * sizeof(float));
        }
    }
}

static void lstm_run(const Recurrence *lstm) {
    for (int64_t direction = 0; direction < 2; direction++)
        for (int64_t first = lstm->first; first < lstm->last; first += TILE)
            lstm_tile(lstm, direction, first, lstm->last - first < TILE ? lstm->last - first : TILE);
}
