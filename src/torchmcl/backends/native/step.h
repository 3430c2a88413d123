/* A training step of many small ReLU networks, model by model and a few rows at a time, all in the first cache.

   It computes what `mcl_step` defines. Activations are kept as [features][WIDTH], so that every loop over rows is a
   loop over full vectors. This file is compiled once for each instruction set: the file that includes it says how wide
   a vector is (VECTOR_BYTES), how many vectors a product fills at once (STEP), and what to call the result (VARIANT). */

#include <float.h>
#include <math.h>
#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "native.h"

#define LANES (VECTOR_BYTES / 4)
#define WIDTH 96
#define ALWAYS static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
typedef int ivec __attribute__((vector_size(VECTOR_BYTES)));

#include "exp2.h"

/* What happens to a product before it is stored. NaN stays NaN. */
typedef enum { PLAIN, RELU, GATED } End;

/* out[p] = bias[p] + sum_q a[p * sp + q * sq] in[q], for `count` rows p; GATED: 0 where gate[p] is not positive. */
ALWAYS void mix_some(int count, End end, float *out, const float *a, int64_t sp, int64_t sq, int64_t n_q, const float *in,
                     const float *bias, const float *gate, int64_t width) {
    for (int64_t j = 0; j < width; j += STEP * LANES) {
        vec sum[4][STEP];
        for (int p = 0; p < count; p++)
            for (int s = 0; s < STEP; s++) sum[p][s] = (vec){0} + (bias ? bias[p] : 0.0f);
#pragma GCC unroll 4
        for (int64_t q = 0; q < n_q; q++) {
            const vec *x = (const vec *)(in + q * WIDTH + j);
            for (int p = 0; p < count; p++) {
                float factor = a[p * sp + q * sq];
                for (int s = 0; s < STEP; s++) sum[p][s] += factor * x[s];
            }
        }
        for (int p = 0; p < count; p++)
            for (int s = 0; s < STEP; s++) {
                vec v = sum[p][s];
                if (end == RELU) v = (vec)((ivec)v & ~(v < 0.0f));
                if (end == GATED) v = (vec)((ivec)v & ~(((const vec *)(gate + p * WIDTH + j))[s] <= 0.0f));
                ((vec *)(out + p * WIDTH + j))[s] = v;
            }
    }
}

ALWAYS void mix(End end, float *out, const float *a, int64_t sp, int64_t sq, int64_t n_p, int64_t n_q, const float *in,
                const float *bias, const float *gate, int64_t width) {
    for (int64_t p = 0; p < n_p; p += 4) {
        float *to = out + p * WIDTH;
        const float *from = a + p * sp, *add = bias ? bias + p : 0, *own = gate ? gate + p * WIDTH : 0;
        switch (n_p - p) {
        case 1: mix_some(1, end, to, from, sp, sq, n_q, in, add, own, width); break;
        case 2: mix_some(2, end, to, from, sp, sq, n_q, in, add, own, width); break;
        case 3: mix_some(3, end, to, from, sp, sq, n_q, in, add, own, width); break;
        default: mix_some(4, end, to, from, sp, sq, n_q, in, add, own, width);
        }
    }
}

static void hidden_layer(float *out, const float *weight, int64_t n_out, int64_t n_in, const float *in, int64_t width) {
    mix(RELU, out, weight, n_in, 1, n_out, n_in, in, weight + n_in * n_out, 0, width);
}

/* Of the first n_used of n_in inputs, without ReLU. */
static void plain_layer(float *out, const float *weight, int64_t n_out, int64_t n_in, int64_t n_used, const float *in,
                        int64_t width) {
    mix(PLAIN, out, weight, n_in, 1, n_out, n_used, in, weight + n_in * n_out, 0, width);
}

static void layer_back(float *back, const float *weight, int64_t n_out, int64_t n_in, const float *g, const float *gate,
                       int64_t width) {
    mix(GATED, back, weight, 1, n_in, n_in, n_out, g, 0, gate, width);
}

/* Adds to each of `count` numbers the sum of the lanes of a vector. */
ALWAYS void add_totals(float *to, const vec *v, int count) {
#if defined(__aarch64__)
    if (count == 4) { /* sums of neighbours, twice, of all four vectors at once */
        const float32x4_t first = vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]);
        const float32x4_t second = vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3]);
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), vpaddq_f32(first, second)));
        return;
    }
#endif
    for (int q = 0; q < count; q++) {
        float sum = 0;
        for (int i = 0; i < LANES; i++) sum += v[q][i];
        to[q] += sum;
    }
}

/* da[p * sp + q] += the sum over rows of g[p] in[q]. */
ALWAYS void outer_some(int n_p, int n_q, float *da, int64_t sp, const float *g, const float *in, int64_t width) {
    vec sum[4][4];
    for (int p = 0; p < n_p; p++)
        for (int q = 0; q < n_q; q++) sum[p][q] = (vec){0};
    for (int64_t j = 0; j < width; j += LANES)
        for (int p = 0; p < n_p; p++)
            for (int q = 0; q < n_q; q++)
                sum[p][q] += *(const vec *)(g + p * WIDTH + j) * *(const vec *)(in + q * WIDTH + j);
    for (int p = 0; p < n_p; p++) add_totals(da + p * sp, sum[p], n_q);
}

ALWAYS void outer_rows(int n_p, float *da, int64_t sp, const float *g, const float *in, int64_t n_q, int64_t width) {
    for (int64_t q = 0; q < n_q; q += 4) {
        const float *from = in + q * WIDTH;
        switch (n_q - q) {
        case 1: outer_some(n_p, 1, da + q, sp, g, from, width); break;
        case 2: outer_some(n_p, 2, da + q, sp, g, from, width); break;
        case 3: outer_some(n_p, 3, da + q, sp, g, from, width); break;
        default: outer_some(n_p, 4, da + q, sp, g, from, width);
        }
    }
}

static void outer(float *da, int64_t sp, const float *g, int64_t n_p, const float *in, int64_t n_q, int64_t width) {
    for (int64_t p = 0; p < n_p; p += 4) {
        const float *from = g + p * WIDTH;
        switch (n_p - p) {
        case 1: outer_rows(1, da + p * sp, sp, from, in, n_q, width); break;
        case 2: outer_rows(2, da + p * sp, sp, from, in, n_q, width); break;
        case 3: outer_rows(3, da + p * sp, sp, from, in, n_q, width); break;
        default: outer_rows(4, da + p * sp, sp, from, in, n_q, width);
        }
    }
}

/* Inputs that climb: columns of which a row has 1 up to some place, then at most one value between, then 0. Such a run
   takes from the weights their sum up to that place, so that a table of sums replaces the product. */
typedef struct {
    int64_t n_given;         /* columns before the runs, which are taken as they are */
    int64_t n_runs;
    const int64_t *lengths;  /* columns of each run */
    const int *lower;     /* [sets, rows, n_runs], row of the table below the place */
    const float *between; /* and how far towards the next one */
} Ladders;

static int64_t even_out(int64_t n_out) { return (n_out + 4 * LANES - 1) / (4 * LANES) * (4 * LANES); }

/* table [columns of runs + n_runs][even_out(n_out)]: within a run the sums of the weights before each place. */
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

/* The other way: what the gradient of the table means for the weights. */
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

/* out[p][column] += what the runs of a row contribute, then ReLU unless it is the last layer. */
static void climb(float *out, int64_t n_out, const float *table, const Ladders *ladders, int64_t row, int relu) {
    const int64_t wide = even_out(n_out), n = ladders->n_runs;
    const int *lower = ladders->lower + row * n;
    const float *between = ladders->between + row * n;
    for (int64_t p = 0; p < n_out; p += 4 * LANES) {
        vec sum[4] = {{0}, {0}, {0}, {0}};
        for (int64_t r = 0; r < n; r++) {
            const vec *below = (const vec *)(table + lower[r] * wide + p), *above = below + wide / LANES;
            const float up = between[r], down = 1 - up;
            for (int s = 0; s < 4; s++) sum[s] += down * below[s] + up * above[s];
        }
        for (int64_t i = 0; i < 4 * LANES && p + i < n_out; i++) {
            const float value = out[(p + i) * WIDTH] + sum[i / LANES][i % LANES];
            out[(p + i) * WIDTH] = relu && value < 0 ? 0 : value;
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

#include "mixture.h"

typedef struct {
    int64_t n_hypotheses, n_dims, n_targets;
    int has_scores;
    float factor, epsilon; /* softmin with 2^(factor * excess) where factor < 0, else winner weights */
    float part;            /* 1 / targets of a row */
    float share;           /* 1 / targets of the batch */
    float score_share;     /* weight of the score loss / rows of the batch */
} Rule;

/* A coordinate's part of the cost, and its derivative. */
ALWAYS float element(int absolute, float difference) {
    return absolute ? fabsf(difference) : difference * difference;
}

ALWAYS float slope_of(int absolute, float difference) {
    return absolute ? (float)((difference > 0) - (difference < 0)) : 2 * difference;
}

/* What the loss of a block of rows is computed in; each is [WIDTH] or [n_hypotheses][WIDTH]. */
typedef struct {
    float *lowest, *sum, *loss, *product;
    float *cost, *weight;
    float *labels; /* the share of a row's targets that each hypothesis wins, where there are several */
    float *slopes; /* [n_hypotheses * n_dims][WIDTH], of several targets */
    float winner[WIDTH]; /* as floats, so that all lanes of these loops have one size */
} Work;

/* The cost of each hypothesis for one target of each row, and the cheapest. */
ALWAYS void costs_of(int absolute, const Rule *rule, const float *out, const float *target, int64_t width, Work *work) {
    const int64_t n_k = rule->n_hypotheses, n_d = rule->n_dims;
    float *lowest = work->lowest, *winner = work->winner;
    for (int64_t k = 0; k < n_k; k++) {
        float *c = work->cost + k * WIDTH;
        for (int64_t j = 0; j < width; j++) c[j] = 0;
        for (int64_t d = 0; d < n_d; d++) {
            const float *h = out + (k * n_d + d) * WIDTH, *t = target + d * WIDTH;
            for (int64_t j = 0; j < width; j++) c[j] += element(absolute, h[j] - t[j]);
        }
    }
    for (int64_t j = 0; j < width; j++) lowest[j] = work->cost[j], winner[j] = 0;
    for (int64_t k = 1; k < n_k; k++) {
        const float *c = work->cost + k * WIDTH, number = (float)k;
        for (int64_t j = 0; j < width; j++) {
            const float old = lowest[j], new = c[j], who = winner[j];
            winner[j] = new < old ? number : who;
            lowest[j] = new < old ? new : old;
        }
    }
}

/* The weight of each hypothesis, still to be multiplied by `sum`. */
ALWAYS void weights_of(const Rule *rule, const float *counts, int64_t width, Work *work) {
    const int64_t n_k = rule->n_hypotheses;
    const float top = n_k > 1 ? 1 - rule->epsilon : 1, rest = n_k > 1 ? rule->epsilon / (float)(n_k - 1) : 0;
    float *sum = work->sum;
    if (!(rule->factor < 0)) {
        for (int64_t k = 0; k < n_k; k++) {
            float *w = work->weight + k * WIDTH;
            const float number = (float)k;
            for (int64_t j = 0; j < width; j++) w[j] = work->winner[j] == number ? top : rest;
        }
        for (int64_t j = 0; j < width; j++) sum[j] = counts[j];
        return;
    }
    for (int64_t j = 0; j < width; j++) sum[j] = 0;
    for (int64_t k = 0; k < n_k; k++) {
        float *w = work->weight + k * WIDTH;
        const float *c = work->cost + k * WIDTH;
        for (int64_t j = 0; j < width; j++) {
            w[j] = power_of_two(rule->factor * (c[j] - work->lowest[j]));
            sum[j] += w[j];
        }
    }
    for (int64_t j = 0; j < width; j++) sum[j] = counts[j] / sum[j];
}

/* Adds the weighted costs to the loss. A single target's slopes replace the outputs; those of several are added up. */
ALWAYS void weigh(int absolute, int several, const Rule *rule, float *out, const float *target, int64_t width,
                  Work *work) {
    const int64_t n_d = rule->n_dims;
    for (int64_t k = 0; k < rule->n_hypotheses; k++) {
        const float *w = work->weight + k * WIDTH, *c = work->cost + k * WIDTH, *sum = work->sum, number = (float)k;
        float *loss = work->loss, *label = work->labels + k * WIDTH;
        for (int64_t j = 0; j < width; j++) loss[j] += w[j] * sum[j] * c[j];
        for (int64_t j = 0; several && j < width; j++) label[j] += work->winner[j] == number ? rule->part : 0.0f;
        for (int64_t d = 0; d < n_d; d++) {
            float *h = out + (k * n_d + d) * WIDTH, *all = work->slopes + (k * n_d + d) * WIDTH;
            const float *t = target + d * WIDTH;
            for (int64_t j = 0; j < width; j++) {
                const float slope = rule->share * slope_of(absolute, h[j] - t[j]) * (w[j] * sum[j]);
                if (several)
                    all[j] += slope;
                else
                    h[j] = slope;
            }
        }
    }
}

/* The score loss of a block of rows; its gradient replaces the logits [n_hypotheses][WIDTH]. */
ALWAYS double scores_of(int several, const Rule *rule, float *logits, const float *counts, int64_t width, Work *work) {
    const int64_t n_k = rule->n_hypotheses;
    const float scale = rule->score_share / (float)n_k;
    float *loss = work->loss, *product = work->product;
    for (int64_t j = 0; j < width; j++) loss[j] = 0, product[j] = 1;
    for (int64_t k = 0; k < n_k; k++) {
        float *x = logits + k * WIDTH;
        const float number = (float)k, *shares = work->labels + k * WIDTH;
        for (int64_t j = 0; j < width; j++) {
            float power = power_of_two(-1.4426950408889634f * fabsf(x[j]));
            float label = several ? shares[j] : work->winner[j] == number ? 1.0f : 0.0f;
            float right = x[j] >= 0 ? x[j] : 0.0f;
            product[j] *= 1 + power;
            loss[j] += right - x[j] * label;
            x[j] = scale * counts[j] * ((x[j] >= 0 ? 1.0f : power) / (1 + power) - label);
        }
    }
    double scores = 0;
    for (int64_t j = 0; j < width; j++) scores += counts[j] * (loss[j] + logf(product[j]));
    return scores * scale;
}

/* Losses of a block of rows, and their gradient written over the outputs [n_hypotheses * (n_dims + 1)][WIDTH]. */
ALWAYS double losses_of(int absolute, int several, const Rule *rule, float *out, const float *targets,
                        const float *counts, int64_t width, float *scratch) {
    const int64_t n_k = rule->n_hypotheses, n_values = n_k * rule->n_dims;
    float *const cost = scratch + 4 * WIDTH, *const weight = cost + n_k * WIDTH, *const labels = weight + n_k * WIDTH;
    Work work = {scratch, scratch + WIDTH, scratch + 2 * WIDTH, scratch + 3 * WIDTH,
                 cost, weight, labels, labels + n_k * WIDTH, {0}};
    if (several) memset(labels, 0, (size_t)((n_k + n_values) * WIDTH) * sizeof(float)); /* and the slopes behind them */
    for (int64_t j = 0; j < width; j++) work.loss[j] = 0;
    for (int64_t t = 0; t < (several ? rule->n_targets : 1); t++) {
        const float *target = targets + t * rule->n_dims * WIDTH;
        costs_of(absolute, rule, out, target, width, &work);
        weights_of(rule, counts, width, &work);
        weigh(absolute, several, rule, out, target, width, &work);
    }
    if (several) memcpy(out, work.slopes, (size_t)(n_values * WIDTH) * sizeof(float));
    double all = 0;
    for (int64_t j = 0; j < width; j++) all += work.loss[j];
    all *= rule->share;
    float *logits = out + n_values * WIDTH;
    if (rule->has_scores && rule->score_share != 0) return all + scores_of(several, rule, logits, counts, width, &work);
    if (rule->has_scores) memset(logits, 0, (size_t)(n_k * WIDTH) * sizeof(float));
    return all;
}

/* The same, compiled for each cost and for one and several targets: the loops above have no choice to make. */
static double block_losses(int absolute, const Rule *rule, float *out, const float *targets, const float *counts,
                           int64_t width, float *scratch) {
    if (rule->n_targets > 1)
        return absolute ? losses_of(1, 1, rule, out, targets, counts, width, scratch)
                        : losses_of(0, 1, rule, out, targets, counts, width, scratch);
    return absolute ? losses_of(1, 0, rule, out, targets, counts, width, scratch)
                    : losses_of(0, 0, rule, out, targets, counts, width, scratch);
}

/* log2 of what an excess of 1 does to a weight: finite and below 0 for any positive temperature, else 0. */
static float exponent(float temperature) {
    if (!(temperature > 0)) return 0;
    return fminf(fmaxf(-1.4426950408889634f / temperature, -FLT_MAX), -FLT_MIN);
}

static int64_t up(int64_t n) { return (n + STEP * LANES - 1) / (STEP * LANES) * (STEP * LANES); }

static int64_t table_size(int64_t n_runs, const int64_t *lengths, int64_t n_out) {
    int64_t rows = n_runs;
    for (int64_t r = 0; r < n_runs; r++) rows += lengths[r];
    return (rows * even_out(n_out) + WIDTH - 1) / WIDTH * WIDTH;
}

/* How many floats of scratch memory a step needs. */
static int64_t scratch_size(const Network *network) {
    const int64_t *sizes = network->sizes;
    const int64_t n_k = network->n_hypotheses, n_d = network->n_dims;
    const int64_t in_losses = network->is_mixture ? mixture_rows(n_k, n_d) : 4 + 3 * n_k + n_k * n_d;
    int64_t rows = 2 + network->n_targets * n_d + in_losses, largest = 0; /* all but the layers */
    for (int64_t l = 0; l <= network->n_layers; l++) {
        rows += sizes[l];
        largest = sizes[l] > largest ? sizes[l] : largest;
    }
    return (rows + 2 * largest) * WIDTH + 2 * table_size(network->n_runs, network->run_lengths, sizes[1]);
}

static void training_step(const Network *network, const Rows *data, const Batch *batch) {
    const int64_t *sizes = network->sizes, n_layers = network->n_layers, n_runs = network->n_runs;
    const int64_t n_hypotheses = network->n_hypotheses, n_dims = network->n_dims, n_given = network->n_given;
    const int64_t n_rows = batch->n_rows, n_parameters = batch->n_parameters, *order = batch->order;
    float *scratch = batch->scratch;
    /* Blocks of as many rows, but for the last one: whole vectors each, as the rows that fill them cost as much. */
    const int64_t n_blocks = (n_rows + WIDTH - 1) / WIDTH, even = up((n_rows + n_blocks - 1) / n_blocks);
    const int64_t n_values = n_hypotheses * n_dims, n_targets = network->n_targets, n_wanted = n_targets * n_dims;
    float *at[17], *place = scratch; /* activations of each layer */
    int64_t largest = 0;
    for (int64_t l = 0; l <= n_layers; l++) {
        at[l] = place;
        place += sizes[l] * WIDTH;
        largest = sizes[l] > largest ? sizes[l] : largest;
    }
    float *slope[2] = {place, place + largest * WIDTH};
    float *target = place + 2 * largest * WIDTH, *count = target + n_wanted * WIDTH, *ones = count + WIDTH;
    float *rest = ones + WIDTH;
    for (int64_t j = 0; j < WIDTH; j++) ones[j] = 1;
    const Ladders ladders = {n_given, n_runs, network->run_lengths, data->lower, data->between};
    const int64_t n_table = table_size(n_runs, network->run_lengths, sizes[1]);
    float *table = scratch + scratch_size(network) - 2 * n_table;
    float *table_slope = table + n_table;
    int64_t rows[WIDTH];
    for (int64_t m = 0; m < batch->n_models; m++) {
        const float *own = batch->flat + m * n_parameters;
        float *grad = batch->gradient ? batch->gradient + m * n_parameters : 0;
        const int64_t base = batch->set_of_model[m] * data->n_set_rows + batch->first;
        const int64_t *own_order = order ? order + batch->order_of_model[m] * batch->order_stride : 0;
        const Rule rule = {n_hypotheses, n_dims, n_targets, (int)network->has_scores,
                           exponent(batch->temperature[m]), batch->epsilon[m], 1 / (float)n_targets,
                           1 / (float)(n_rows * n_targets), 1 / (float)n_rows * batch->score_weight};
        double total_loss = 0;
        if (grad) memset(grad, 0, (size_t)n_parameters * sizeof(float));
        if (grad) memset(table_slope, 0, (size_t)n_table * sizeof(float));
        if (n_runs) sum_weights(table, &ladders, own, sizes[1], sizes[0]);
        for (int64_t start = 0; start < n_rows; start += even) {
            const int64_t n = n_rows - start < even ? n_rows - start : even, width = up(n);
            for (int64_t j = 0; j < width; j++) { /* rows beyond the batch are zeros that count nothing */
                const int64_t row = j < n ? base + (order ? own_order[start + j] : start + j) : 0;
                rows[j] = row;
                for (int64_t i = 0; i < n_given; i++) at[0][i * WIDTH + j] = j < n ? data->inputs[row * n_given + i] : 0;
                for (int64_t i = 0; i < n_wanted; i++) target[i * WIDTH + j] = j < n ? data->targets[row * n_wanted + i] : 0;
                count[j] = j < n ? (data->counts ? data->counts[row] : 1) : 0;
            }
            const float *weight = own;
            for (int64_t l = 0; l < n_layers; l++) {
                const int64_t n_in = sizes[l], n_out = sizes[l + 1];
                if (l == 0 && n_runs) {
                    plain_layer(at[1], weight, n_out, n_in, n_given, at[0], width);
                    for (int64_t j = 0; j < n; j++) climb(at[1] + j, n_out, table, &ladders, rows[j], n_layers > 1);
                } else if (l + 1 < n_layers)
                    hidden_layer(at[l + 1], weight, n_out, n_in, at[l], width);
                else
                    plain_layer(at[l + 1], weight, n_out, n_in, n_in, at[l], width);
                weight += n_out * (n_in + 1);
            }
            total_loss += network->is_mixture
                              ? mixture_losses(network, rule.share, at[n_layers], target, count, width, rest)
                              : block_losses((int)network->absolute, &rule, at[n_layers], target, count, width, rest);
            const float *g = at[n_layers];
            for (int64_t l = n_layers - 1; grad && l >= 0; l--) {
                const int64_t n_in = sizes[l], n_out = sizes[l + 1];
                weight -= n_out * (n_in + 1);
                float *to = grad + (weight - own);
                outer(to, n_in, g, n_out, at[l], l == 0 ? n_given : n_in, width);
                outer(to + n_in * n_out, 1, g, n_out, ones, 1, width); /* of the bias */
                if (l == 0) {
                    for (int64_t j = 0; n_runs && j < n; j++) climb_back(table_slope, g + j, n_out, &ladders, rows[j]);
                    break;
                }
                float *back = slope[l % 2];
                const int64_t used = l == n_layers - 1 && network->detach_scores ? n_values : n_out;
                layer_back(back, weight, used, n_in, g, at[l], width);
                g = back;
            }
        }
        if (grad && n_runs) sum_slopes(table_slope, &ladders, grad, sizes[1], sizes[0]);
        batch->loss[m] = (float)(total_loss - 0 * total_loss); /* NaN for infinity */
    }
}

static void adam_update(const Adam *adam) {
    const int64_t n_parameters = adam->n_parameters;
    const float beta1 = adam->beta1, beta2 = adam->beta2;
    for (int64_t m = 0; m < adam->n_models; m++) {
        float *p = adam->flat + m * n_parameters, *mu = adam->mean + m * n_parameters;
        float *nu = adam->square + m * n_parameters;
        const float *g = adam->gradient + m * n_parameters, rate = adam->rate[m];
        const double root = sqrt(-expm1(adam->n_steps[m] * log(beta2)));
        const float step = (float)(rate * root / -expm1(adam->n_steps[m] * log(beta1)));
        const float tiny = (float)(adam->epsilon * root), kept = adam->decay ? 1 - rate * adam->decay[m] : 1;
        for (int64_t i = 0; i < n_parameters; i++) {
            mu[i] += (1 - beta1) * (g[i] - mu[i]);
            nu[i] = beta2 * nu[i] + (1 - beta2) * g[i] * g[i];
            p[i] = kept * p[i] - step * mu[i] / (sqrtf(nu[i]) + tiny);
        }
    }
}
