/* A training step of many small ReLU networks, model by model and a few rows at a time, all in the L1 cache.

   It computes the same as `mcl_step`. Activations are kept as [features][WIDTH], so that every loop over rows is a
   loop over full vectors. This file is compiled once for each instruction set: the file that includes it defines
   the width of a vector (VECTOR_BYTES), the number of vectors per product (STEP), and the name of the result (VARIANT). */

#include <float.h>
#include <math.h>
#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#include "native.h"

#define LANES (VECTOR_BYTES / 4)
#define WIDTH 96
#define ALWAYS static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
typedef int ivec __attribute__((vector_size(VECTOR_BYTES)));

#include "functions.h"
#include "turning.h"
#include "products.h"
#include "ladders.h"
#include "losses.h"
#include "mixture.h"

static int64_t up(int64_t n) { return (n + STEP * LANES - 1) / (STEP * LANES) * (STEP * LANES); }

static int64_t table_size(int64_t n_runs, const int64_t *lengths, int64_t n_out) {
    int64_t rows = n_runs;
    for (int64_t r = 0; r < n_runs; r++) rows += lengths[r];
    return (rows * even_out(n_out) + WIDTH - 1) / WIDTH * WIDTH;
}

/* The number of floats of scratch memory of a step. */
static int64_t scratch_size(const Network *network) {
    const int64_t *sizes = network->sizes;
    const int64_t n_k = network->n_hypotheses, n_d = network->n_dims;
    const int64_t in_losses = network->is_mixture ? mixture_rows(n_k, n_d) : 4 + 3 * n_k + n_k * n_d;
    int64_t rows = 1 + network->n_targets * n_d + in_losses, largest = 0; /* all but the layers */
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
    /* Blocks of equal numbers of rows, except for the last one; each has full vectors, because padded rows cost the same. */
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
    float *target = place + 2 * largest * WIDTH, *count = target + n_wanted * WIDTH, *rest = count + WIDTH;
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
        if (grad && n_runs) memset(grad, 0, (size_t)n_parameters * sizeof(float)); /* else the first block sets it */
        if (grad) memset(table_slope, 0, (size_t)n_table * sizeof(float));
        if (n_runs) sum_weights(table, &ladders, own, sizes[1], sizes[0]);
        for (int64_t start = 0; start < n_rows; start += even) {
            const int64_t n = n_rows - start < even ? n_rows - start : even, width = up(n);
            for (int64_t j = 0; j < width; j++) { /* rows beyond the batch are 0 and have no weight */
                rows[j] = j < n ? base + (order ? own_order[start + j] : start + j) : 0;
                count[j] = j < n ? (data->counts ? data->counts[rows[j]] : 1) : 0;
            }
            gather(at[0], data->inputs, rows, n, width, n_given);
            gather(target, data->targets, rows, n, width, n_wanted);
            const float *weight = own;
            for (int64_t l = 0; l < n_layers; l++) {
                const int64_t n_in = sizes[l], n_out = sizes[l + 1];
                if (l == 0 && n_runs) {
                    plain_layer(at[1], weight, n_out, n_in, n_given, at[0], width);
                    climb(at[1], n_out, table, &ladders, rows, n, n_layers > 1);
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
                const Source source = {data->inputs, rows, n};
                const int adds = n_runs || start; /* to the blocks before */
                outer(to, n_in, g, n_out, at[l], l == 0 ? n_given : n_in, width, adds, l == 0 ? &source : 0);
                add_rows(to + n_in * n_out, g, n_out, width, adds); /* of the bias */
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
        /* Vectors begin with the first parameter, wherever it lies: vectors and single numbers round differently, and the
           result of a model must not depend on its place in a fleet. */
        int64_t i = 0;
        for (; i + LANES <= n_parameters; i += LANES) {
            /* All loads come first: the arrays begin at the same place of a page, and a load that agrees with an earlier
               store in the last 12 bits of its address waits for that store. */
            const vec slope = (vec) * (const loose *)(g + i), old = (vec) * (const loose *)(mu + i);
            const vec squares = (vec) * (const loose *)(nu + i), own = (vec) * (const loose *)(p + i);
            const vec first = old + (1 - beta1) * (slope - old);
            const vec second = beta2 * squares + (1 - beta2) * slope * slope;
            *(loose *)(mu + i) = (loose)first, *(loose *)(nu + i) = (loose)second;
            *(loose *)(p + i) = (loose)(kept * own - step * first * inverses(roots(second) + tiny));
        }
        for (; i < n_parameters; i++) {
            mu[i] += (1 - beta1) * (g[i] - mu[i]);
            nu[i] = beta2 * nu[i] + (1 - beta2) * g[i] * g[i];
            p[i] = kept * p[i] - step * mu[i] / (sqrtf(nu[i]) + tiny);
        }
    }
}

/* Returns whether every number is finite: 0 times infinity or NaN is NaN. */
static int all_finite(const float *x, int64_t n) {
    vec sum[4] = {{0}};
    float rest = 0;
    int64_t i = 0;
    for (; i < n && (uintptr_t)(x + i) % VECTOR_BYTES; i++) rest += 0 * x[i];
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int s = 0; s < 4; s++) sum[s] += 0.0f * (vec) * (const loose *)(x + i + s * LANES);
    for (; i < n; i++) rest += 0 * x[i];
    return rest + sum_of((sum[0] + sum[1]) + (sum[2] + sum[3])) == 0;
}

/* Model by model: the data of a model stay in the L2 cache from batch to batch and from epoch to epoch. A model with a
   non-finite gradient keeps its weights. */
static void training_epochs(const Network *network, const Rows *data, const Batch *batch, const Adam *adam,
                            const Epochs *epochs) {
    const int64_t n_parameters = batch->n_parameters, n_batches = epochs->n_batches, *bounds = epochs->bounds;
    for (int64_t m = epochs->first; m < epochs->last; m++) {
        const int64_t at = m * n_parameters;
        Batch own = *batch;
        own.n_models = 1, own.flat += at, own.gradient += at, own.set_of_model += m;
        own.order_of_model += batch->order ? m : 0;
        Adam change = *adam;
        change.n_models = 1, change.flat += at, change.gradient += at, change.mean += at, change.square += at;
        change.n_steps = epochs->n_steps + m, change.decay += adam->decay ? m : 0;
        for (int64_t step = 0; step < epochs->n_epochs * n_batches; step++) {
            const int64_t e = step / n_batches, b = step % n_batches;
            own.loss = epochs->losses + step * batch->n_models + m;
            *own.loss = 0;
            if (!epochs->active[m]) continue;
            own.temperature = batch->temperature + 2 * e * batch->n_models + m;
            own.epsilon = own.temperature + batch->n_models;
            own.first = batch->order ? 0 : bounds[b];
            own.order = batch->order ? batch->order + e * epochs->n_ordered + bounds[b] : 0;
            own.n_rows = bounds[b + 1] - bounds[b];
            training_step(network, data, &own);
            const int finite = all_finite(own.gradient, n_parameters);
            const float rate = finite ? adam->rate[e * batch->n_models + m] : 0;
            if (!finite) memset(own.gradient, 0, (size_t)n_parameters * sizeof(float));
            change.rate = &rate, epochs->n_steps[m]++;
            adam_update(&change);
        }
    }
}
