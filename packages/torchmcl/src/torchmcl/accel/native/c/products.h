/* The products of a layer with a block of rows, stored as [features][WIDTH]. Included by step.h. */

/* Applied to a product before it is stored. NaN stays NaN. */
typedef enum { PLAIN, RELU, GATED } End;

/* How many rows of a product to compute at once, given how many are left: TALL of them fill the registers. */
ALWAYS int64_t rows_at_once(int64_t n_left) { return n_left >= TALL ? TALL : n_left < 4 ? n_left : 4; }

/* out[p] = bias[p] + sum_q a[p * sp + q * sq] in[q], for `count` rows p and a few vectors; GATED: 0 where gate[p] is not
   positive. */
ALWAYS void mix_some(int count, End end, float *out, const float *a, int64_t sp, int64_t sq, int64_t n_q, const float *in,
                     const float *bias, const float *gate) {
    vec sum[TALL][STEP];
    for (int p = 0; p < count; p++)
        for (int s = 0; s < STEP; s++) sum[p][s] = (vec){0} + (bias ? bias[p] : 0.0f);
#pragma GCC unroll 4
    for (int64_t q = 0; q < n_q; q++) {
        const vec *x = (const vec *)(in + q * WIDTH);
#if defined(__aarch64__)
        if (count == 4 && sp == 1) { /* loads four factors with one instruction; the products select from them */
            const float32x4_t factors = vld1q_f32(a + q * sq);
            for (int s = 0; s < STEP; s++) {
                sum[0][s] = (vec)vfmaq_laneq_f32((float32x4_t)sum[0][s], (float32x4_t)x[s], factors, 0);
                sum[1][s] = (vec)vfmaq_laneq_f32((float32x4_t)sum[1][s], (float32x4_t)x[s], factors, 1);
                sum[2][s] = (vec)vfmaq_laneq_f32((float32x4_t)sum[2][s], (float32x4_t)x[s], factors, 2);
                sum[3][s] = (vec)vfmaq_laneq_f32((float32x4_t)sum[3][s], (float32x4_t)x[s], factors, 3);
            }
            continue;
        }
#endif
        for (int p = 0; p < count; p++) {
            float factor = a[p * sp + q * sq];
            for (int s = 0; s < STEP; s++) sum[p][s] += factor * x[s];
        }
    }
    for (int p = 0; p < count; p++)
        for (int s = 0; s < STEP; s++) {
            vec v = sum[p][s];
            if (end == RELU) v = (vec)((ivec)v & ~(v < 0.0f));
            if (end == GATED) v = (vec)((ivec)v & ~(((const vec *)(gate + p * WIDTH))[s] <= 0.0f));
            ((vec *)(out + p * WIDTH))[s] = v;
        }
}

/* A few vectors of all rows at a time: their part of `in` stays in the L1 cache while the factors are read. */
ALWAYS void mix(End end, float *out, const float *a, int64_t sp, int64_t sq, int64_t n_p, int64_t n_q, const float *in,
                const float *bias, const float *gate, int64_t width) {
    for (int64_t j = 0; j < width; j += STEP * LANES)
        for (int64_t p = 0, rows; p < n_p; p += rows) {
            float *to = out + p * WIDTH + j;
            const float *from = a + p * sp, *add = bias ? bias + p : 0, *own = gate ? gate + p * WIDTH + j : 0;
            rows = rows_at_once(n_p - p);
            switch (rows) {
            case 1: mix_some(1, end, to, from, sp, sq, n_q, in + j, add, own); break;
            case 2: mix_some(2, end, to, from, sp, sq, n_q, in + j, add, own); break;
            case 3: mix_some(3, end, to, from, sp, sq, n_q, in + j, add, own); break;
            case 4: mix_some(4, end, to, from, sp, sq, n_q, in + j, add, own); break;
            default: mix_some(TALL, end, to, from, sp, sq, n_q, in + j, add, own);
            }
        }
}

static void hidden_layer(float *out, const float *weight, int64_t n_out, int64_t n_in, const float *in, int64_t width) {
    mix(RELU, out, weight, n_in, 1, n_out, n_in, in, weight + n_in * n_out, 0, width);
}

/* For the first n_used of n_in inputs, without ReLU. */
static void plain_layer(float *out, const float *weight, int64_t n_out, int64_t n_in, int64_t n_used, const float *in,
                        int64_t width) {
    mix(PLAIN, out, weight, n_in, 1, n_out, n_used, in, weight + n_in * n_out, 0, width);
}

static void layer_back(float *back, const float *weight, int64_t n_out, int64_t n_in, const float *g, const float *gate,
                       int64_t width) {
    mix(GATED, back, weight, 1, n_in, n_in, n_out, g, 0, gate, width);
}

#define SOME_INPUTS 64

#if defined(__aarch64__)

/* Adds to each of `count` numbers the sum of the lanes of a vector. */
ALWAYS void add_totals(float *to, const vec *v, int count) {
    if (count == 4) { /* pairwise sums, twice, of all four vectors at once */
        const float32x4_t first = vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]);
        const float32x4_t second = vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3]);
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), vpaddq_f32(first, second)));
        return;
    }
    for (int q = 0; q < count; q++) {
        float sum = 0;
        for (int i = 0; i < LANES; i++) sum += v[q][i];
        to[q] += sum;
    }
}

/* da[p * sp + q] is the sum over rows of g[p] in[q], or that sum is added to it. */
ALWAYS void outer_some(int n_p, int n_q, float *da, int64_t sp, const float *g, const float *in, int64_t width, int adds) {
    vec sum[4][4];
    for (int p = 0; p < n_p; p++)
        for (int q = 0; q < n_q; q++) sum[p][q] = (vec){0};
    for (int64_t j = 0; j < width; j += LANES)
        for (int p = 0; p < n_p; p++)
            for (int q = 0; q < n_q; q++)
                sum[p][q] += *(const vec *)(g + p * WIDTH + j) * *(const vec *)(in + q * WIDTH + j);
    for (int p = 0; p < n_p; p++) {
        for (int q = 0; q < n_q && !adds; q++) da[p * sp + q] = 0;
        add_totals(da + p * sp, sum[p], n_q);
    }
}

ALWAYS void outer_rows(int n_p, float *da, int64_t sp, const float *g, const float *in, int64_t n_q, int64_t width,
                       int adds) {
    for (int64_t q = 0; q < n_q; q += 4) {
        const float *from = in + q * WIDTH;
        switch (n_q - q) {
        case 1: outer_some(n_p, 1, da + q, sp, g, from, width, adds); break;
        case 2: outer_some(n_p, 2, da + q, sp, g, from, width, adds); break;
        case 3: outer_some(n_p, 3, da + q, sp, g, from, width, adds); break;
        default: outer_some(n_p, 4, da + q, sp, g, from, width, adds);
        }
    }
}

#else

ALWAYS void copy_some(float *to, const float *from, int64_t n) {
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES) *(loose *)(to + k) = *(const loose *)(from + k);
    for (; k < n; k++) to[k] = from[k];
}

/* Adds the first n < LANES lanes, if there are any, to as many numbers. */
ALWAYS void add_first(float *to, vec x, int64_t n) {
    int64_t i = 0;
    for (; i + 4 < LANES && i + 4 <= n; i += 4) *(four *)(to + i) += ((const four *)&x)[i / 4];
    for (; i < n; i++) to[i] += x[i];
}

/* da[p * sp + q] is the sum over rows of g[p] in[q], or that sum is added to it, for `n_s` vectors of q. */
ALWAYS void outer_some(int n_p, int n_s, float *da, int64_t sp, const float *g, const float *turned, int64_t n_q,
                       int64_t width, int adds) {
    vec sum[TALL][STEP];
    for (int p = 0; p < n_p; p++)
        for (int s = 0; s < n_s; s++) sum[p][s] = (vec){0};
#pragma GCC unroll 4
    for (int64_t j = 0; j < width; j++) {
        const vec *x = (const vec *)(turned + j * SOME_INPUTS);
        for (int p = 0; p < n_p; p++) {
            const float factor = g[p * WIDTH + j];
            for (int s = 0; s < n_s; s++) sum[p][s] += factor * x[s];
        }
    }
    for (int p = 0; p < n_p; p++)
        for (int s = 0; s < n_s; s++) {
            float *to = da + p * sp + s * LANES;
            const int64_t n = n_q - s * LANES;
            if (n >= LANES) {
                *(loose *)to = (adds ? *(const loose *)to : (loose){0}) + (loose)sum[p][s];
                continue;
            }
            for (int64_t i = 0; i < n && !adds; i++) to[i] = 0;
            add_first(to, sum[p][s], n);
        }
}

/* The inputs are transposed to [rows][inputs] first: for wide vectors, summing the lanes of vectors of rows would take
   longer than the products. */
ALWAYS void outer_rows(int n_p, float *da, int64_t sp, const float *g, const float *turned, int64_t n_q, int64_t width,
                       int adds) {
    int64_t q = 0;
    for (; n_q - q > LANES; q += STEP * LANES) outer_some(n_p, STEP, da + q, sp, g, turned + q, n_q - q, width, adds);
    if (q < n_q) outer_some(n_p, 1, da + q, sp, g, turned + q, n_q - q, width, adds);
}

#endif

/* to[p] is the sum over rows of g[p], or that sum is added to it. */
static void add_rows(float *to, const float *g, int64_t n_p, int64_t width, int adds) {
    for (int64_t p = 0; p < n_p; p++) {
        vec sum = {0};
        for (int64_t j = 0; j < width; j += LANES) sum += *(const vec *)(g + p * WIDTH + j);
        to[p] = (adds ? to[p] : 0) + sum_of(sum);
    }
}

/* The inputs of the first layer as rows of `from`, which need no transposition. */
typedef struct {
    const float *from;
    const int64_t *numbers;
    int64_t n_rows;
} Source;

/* A few inputs at a time, which stay in the L1 cache while the rows of g are read. */
static void outer(float *da, int64_t sp, const float *g, int64_t n_p, const float *in, int64_t n_q, int64_t width,
                  int adds, const Source *source) {
    for (int64_t first = 0; first < n_q; first += SOME_INPUTS) {
        const int64_t n = n_q - first < SOME_INPUTS ? n_q - first : SOME_INPUTS;
#if defined(__aarch64__)
        const float *inputs = in + first * WIDTH;
        (void)source;
#else
        float inputs[WIDTH * SOME_INPUTS] __attribute__((aligned(64)));
        const int64_t filled = (n + STEP * LANES - 1) / (STEP * LANES) * (STEP * LANES);
        for (int64_t j = 0; j < width; j++)
            for (int64_t q = filled - STEP * LANES; q < filled; q += LANES) store(inputs + j * SOME_INPUTS + q, (vec){0});
        for (int64_t j = 0; source && j < source->n_rows; j++)
            copy_some(inputs + j * SOME_INPUTS, source->from + source->numbers[j] * n_q + first, n);
        for (int64_t j = source ? source->n_rows : width; j < width; j++)
            for (int64_t q = 0; q < filled; q += LANES) store(inputs + j * SOME_INPUTS + q, (vec){0});
        if (!source) turn(inputs, SOME_INPUTS, in + first * WIDTH, WIDTH, n, width);
#endif
        for (int64_t p = 0, rows; p < n_p; p += rows) {
            const float *from = g + p * WIDTH;
            float *to = da + p * sp + first;
            rows = rows_at_once(n_p - p);
            switch (rows) {
            case 1: outer_rows(1, to, sp, from, inputs, n, width, adds); break;
            case 2: outer_rows(2, to, sp, from, inputs, n, width, adds); break;
            case 3: outer_rows(3, to, sp, from, inputs, n, width, adds); break;
            case 4: outer_rows(4, to, sp, from, inputs, n, width, adds); break;
            default: outer_rows(TALL, to, sp, from, inputs, n, width, adds);
            }
        }
    }
}
