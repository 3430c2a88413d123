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

/* The number of floats of a table [columns of runs + n_runs][up_lanes(n_out)]. */
static int64_t table_size(int64_t n_runs, const int64_t *lengths, int64_t n_out) {
    int64_t rows = n_runs;
    for (int64_t r = 0; r < n_runs; r++) rows += lengths[r];
    return rows * up_lanes(n_out);
}

/* The table: for each run, the sums of the packed weights before each position. */
static void sum_weights(float *table, const Ladders *ladders, const float *weight, int64_t n_out) {
    const int64_t stride = up_lanes(n_out);
    for (int64_t p = 0; p < stride; p += LANES) {
        const float *from = weight + ladders->n_given * stride + p;
        float *to = table + p;
        for (int64_t r = 0; r < ladders->n_runs; r++) {
            vec sum = {0};
            store(to, sum), to += stride;
            for (int64_t c = 0; c < ladders->lengths[r]; c++, to += stride, from += stride) store(to, sum += load(from));
        }
    }
}

/* The reverse: converts the gradient of the table to that of the packed weights. */
static void sum_slopes(const float *table, const Ladders *ladders, float *gradient, int64_t n_out) {
    const int64_t stride = up_lanes(n_out);
    for (int64_t p = 0; p < stride; p += LANES) {
        float *to = gradient + ladders->n_given * stride + p;
        const float *from = table + p;
        for (int64_t r = 0; r < ladders->n_runs; r++) {
            vec sum = {0};
            for (int64_t c = ladders->lengths[r] - 1; c >= 0; c--) store(to + c * stride, sum += load(from + (c + 1) * stride));
            from += (ladders->lengths[r] + 1) * stride, to += ladders->lengths[r] * stride;
        }
    }
}

/* Adds the contribution of the runs of a row to n_s vectors of outputs, from column p on. */
ALWAYS void climb_some(int n_s, float *to, const float *from, int64_t stride, const Ladders *ladders, int64_t row,
                       int relu) {
    const int64_t n = ladders->n_runs;
    const int *lower = ladders->lower + row * n;
    const float *between = ladders->between + row * n;
    vec sum[4] = {{0}, {0}, {0}, {0}};
    for (int64_t r = 0; r < n; r++) {
        const float *below = from + lower[r] * stride, *above = below + stride;
        const float up = between[r], down = 1 - up;
        for (int s = 0; s < n_s; s++) sum[s] += down * load(below + s * LANES) + up * load(above + s * LANES);
    }
    for (int s = 0; s < n_s; s++) {
        const vec value = load(to + s * LANES) + sum[s];
        store(to + s * LANES, relu ? (vec)((ivec)value & ~(value < 0.0f)) : value);
    }
}

/* out[j] += the contribution of the runs of row rows[j], then ReLU unless it is the last layer. Some outputs of all
   rows at a time: their part of the table stays in the L1 cache. */
static void climb(float *out, int64_t n_out, const float *table, const Ladders *ladders, const int64_t *rows, int64_t n,
                  int relu) {
    const int64_t stride = up_lanes(n_out);
    for (int64_t p = 0; p < stride; p += 4 * LANES)
        for (int64_t j = 0; j < n; j++) {
            float *to = out + j * stride + p;
            switch ((stride - p) / LANES) {
            case 1: climb_some(1, to, table + p, stride, ladders, rows[j], relu); break;
            case 2: climb_some(2, to, table + p, stride, ladders, rows[j], relu); break;
            case 3: climb_some(3, to, table + p, stride, ladders, rows[j], relu); break;
            default: climb_some(4, to, table + p, stride, ladders, rows[j], relu);
            }
        }
}

/* Adds the gradient g of the outputs of a row to that of the table. */
static void climb_back(float *table, const float *g, int64_t n_out, const Ladders *ladders, int64_t row) {
    const int64_t stride = up_lanes(n_out), n = ladders->n_runs;
    const int *lower = ladders->lower + row * n;
    const float *between = ladders->between + row * n;
    for (int64_t r = 0; r < n; r++) {
        float *below = table + lower[r] * stride, *above = below + stride;
        const float up = between[r], down = 1 - up;
        for (int64_t p = 0; p < stride; p += LANES) {
            const vec own = load(g + p);
            store(below + p, load(below + p) + down * own), store(above + p, load(above + p) + up * own);
        }
    }
}
