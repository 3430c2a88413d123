/* Products with cumulative input columns, by table lookup. Included by step.h. */

/* Cumulative inputs: runs of columns that are 1 up to some position, then have at most one value in between, then are 0.
   The product of a run with its weights is their sum up to that position, so a table of sums replaces the product. */
typedef struct {
    int64_t n_given;         /* ordinary columns, before the runs */
    int64_t n_runs;
    const int64_t *lengths;  /* columns of each run */
    const int *lower;     /* [sets, rows, n_runs], row of the table below the position */
    const float *between; /* the fraction of the way to the next row */
} Ladders;

static int64_t even_out(int64_t n_out) { return (n_out + 4 * LANES - 1) / (4 * LANES) * (4 * LANES); }

/* table [columns of runs + n_runs][even_out(n_out)]: for each run, the sums of the weights before each position. */
static void sum_weights(float *table, const Ladders *ladders, const float *weight, int64_t n_out, int64_t n_in) {
    const int64_t wide = even_out(n_out);
    for (int64_t p = 0; p < n_out; p += LANES) {
        const int64_t n = n_out - p < LANES ? n_out - p : LANES;
        const float *from = weight + p * n_in + ladders->n_given;
        float *to = table + p;
        for (int64_t r = 0; r < ladders->n_runs; r++) {
            vec sum = {0};
            *(vec *)to = sum, to += wide;
            for (int64_t c = 0; c < ladders->lengths[r]; c++, to += wide) {
                for (int64_t i = 0; i < n; i++) sum[i] += from[i * n_in + c];
                *(vec *)to = sum;
            }
            from += ladders->lengths[r];
        }
    }
}

/* The reverse: converts the gradient of the table to that of the weights. */
static void sum_slopes(const float *table, const Ladders *ladders, float *gradient, int64_t n_out, int64_t n_in) {
    const int64_t wide = even_out(n_out);
    for (int64_t p = 0; p < n_out; p += LANES) {
        const int64_t n = n_out - p < LANES ? n_out - p : LANES;
        float *to = gradient + p * n_in + ladders->n_given;
        const float *from = table + p;
        for (int64_t r = 0; r < ladders->n_runs; r++) {
            vec sum = {0};
            for (int64_t c = ladders->lengths[r] - 1; c >= 0; c--) {
                sum += *(const vec *)(from + (c + 1) * wide);
                for (int64_t i = 0; i < n; i++) to[i * n_in + c] = sum[i];
            }
            from += (ladders->lengths[r] + 1) * wide;
            to += ladders->lengths[r];
        }
    }
}

/* The contribution of the runs of a row to 4 * LANES outputs, of the columns `from` of the table on. */
ALWAYS void climb_some(float *to, const float *from, int64_t wide, const Ladders *ladders, int64_t row) {
    const int64_t n = ladders->n_runs;
    const int *lower = ladders->lower + row * n;
    const float *between = ladders->between + row * n;
    vec sum[4] = {{0}, {0}, {0}, {0}};
    for (int64_t r = 0; r < n; r++) {
        const vec *below = (const vec *)(from + lower[r] * wide), *above = below + wide / LANES;
        const float up = between[r], down = 1 - up;
        for (int s = 0; s < 4; s++) sum[s] += down * below[s] + up * above[s];
    }
    for (int s = 0; s < 4; s++) store(to + s * LANES, sum[s]);
}

/* out[p][j] += the contribution of the runs of row rows[j], then ReLU unless it is the last layer. Some outputs of all
   rows at a time: their part of the table stays in the L1 cache. */
static void climb(float *out, int64_t n_out, const float *table, const Ladders *ladders, const int64_t *rows, int64_t n,
                  int relu) {
    float sums[LANES * 4 * LANES] __attribute__((aligned(64))), turned[4 * LANES * LANES] __attribute__((aligned(64)));
    for (int64_t p = 0; p < n_out; p += 4 * LANES)
        for (int64_t j = 0; j < n; j += LANES) {
            const int64_t n_rows = n - j < LANES ? n - j : LANES, n_p = n_out - p < 4 * LANES ? n_out - p : 4 * LANES;
            if (n_rows < LANES) memset(sums, 0, sizeof sums); /* padding */
            for (int64_t i = 0; i < n_rows; i++)
                climb_some(sums + i * 4 * LANES, table + p, even_out(n_out), ladders, rows[j + i]);
            turn(turned, LANES, sums, 4 * LANES, LANES, 4 * LANES);
            for (int64_t i = 0; i < n_p; i++) {
                float *to = out + (p + i) * WIDTH + j;
                const vec value = load(to) + load(turned + i * LANES);
                store(to, relu ? (vec)((ivec)value & ~(value < 0.0f)) : value);
            }
        }
}

/* Adds the gradient g[p][column] of a row to that of the table. */
static void climb_back(float *table, const float *g, int64_t n_out, const Ladders *ladders, int64_t row) {
    const int64_t wide = even_out(n_out), n = ladders->n_runs;
    const int *lower = ladders->lower + row * n;
    const float *between = ladders->between + row * n;
    for (int64_t p = 0; p < n_out; p += 4 * LANES) {
        vec own[4] = {{0}, {0}, {0}, {0}};
        for (int64_t i = 0; i < 4 * LANES && p + i < n_out; i++) own[i / LANES][i % LANES] = g[(p + i) * WIDTH];
        for (int64_t r = 0; r < n; r++) {
            vec *below = (vec *)(table + lower[r] * wide + p), *above = below + wide / LANES;
            const float up = between[r], down = 1 - up;
            for (int s = 0; s < 4; s++) below[s] += down * own[s], above[s] += up * own[s];
        }
    }
}
