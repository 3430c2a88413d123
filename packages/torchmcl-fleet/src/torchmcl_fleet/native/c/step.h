/* A training step of many small ReLU networks, model by model and a few rows at a time, all in the L1 cache.

   It computes the same as `mcl_step`. Products are of rows of features, losses of [values][WIDTH]: lanes are features in
   the former and rows in the latter. This file is compiled once for each instruction set: the file that includes it
   defines the width of a vector (VECTOR_BYTES), how many vectors fill the registers (SUMS) and how many of them are side
   by side (WIDE), and the name of the result (VARIANT). */

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
#include "packing.h"
#include "ladders.h"
#include "losses.h"
#include "mixture.h"

/* Rows are padded to whole vectors in losses. */
static int64_t up(int64_t n) { return (n + TWO * LANES - 1) / (TWO * LANES) * (TWO * LANES); }

/* The memory of a step of one model. */
typedef struct {
    float *own, *grad, *mean, *square;  /* packed: parameters, their gradient and its moments */
    float *turned;                      /* weights for gradients of inputs */
    float *table, *table_slope;         /* of cumulative inputs */
    float *at[17], *slope[2];           /* rows of activations and of their gradients; inputs are read in place */
    const float *in[17][WIDTH];         /* the activations of each row */
    const float *to[WIDTH];             /* the gradients */
    float *out, *target, *count, *rest; /* [values][WIDTH]: outputs, targets, weights of rows, memory of the loss */
    int64_t rows[WIDTH];                /* their numbers in the table */
    int64_t n_packed, n_table, n_all;
} Space;

/* The next n floats of the memory, if there is one. */
static float *taken(Space *space, float *memory, int64_t n) {
    const int64_t first = space->n_all;
    space->n_all += (n + 15) / 16 * 16;
    return memory ? memory + first : 0;
}

/* Divides memory; without it, only counts the floats. */
static void divide(Space *space, const Network *network, float *memory) {
    const int64_t *sizes = network->sizes, n_layers = network->n_layers, n_k = network->n_hypotheses, n_d = network->n_dims;
    int64_t largest = 0;
    space->n_all = 0;
    space->n_packed = packed_size(network), space->n_table = table_size(network->n_runs, network->run_lengths, sizes[1]);
    space->own = taken(space, memory, space->n_packed), space->grad = taken(space, memory, space->n_packed);
    space->mean = taken(space, memory, space->n_packed), space->square = taken(space, memory, space->n_packed);
    space->turned = taken(space, memory, turned_size(network));
    space->table = taken(space, memory, space->n_table), space->table_slope = taken(space, memory, space->n_table);
    for (int64_t l = 1; l <= n_layers; l++) {
        const int64_t stride = up_lanes(sizes[l]);
        largest = stride > largest ? stride : largest;
        space->at[l] = taken(space, memory, stride * WIDTH);
        for (int64_t j = 0; memory && j < WIDTH; j++) space->in[l][j] = space->at[l] + j * stride;
    }
    for (int i = 0; i < 2; i++) space->slope[i] = taken(space, memory, largest * WIDTH);
    space->out = taken(space, memory, up_lanes(sizes[n_layers]) * WIDTH);
    space->target = taken(space, memory, network->n_targets * n_d * WIDTH), space->count = taken(space, memory, WIDTH);
    space->rest = taken(space, memory, (network->is_mixture ? mixture_rows(n_k, n_d) : 4 + 3 * n_k + n_k * n_d) * WIDTH);
}

/* The number of floats of scratch memory of a step. */
static int64_t scratch_size(const Network *network) {
    Space space;
    divide(&space, network, 0);
    return space.n_all;
}

/* The outputs of a block of n rows, as [values][WIDTH]. */
static void block_forward(const Network *network, const Rows *data, const Ladders *ladders, Space *space, int64_t n) {
    const int64_t *sizes = network->sizes, n_layers = network->n_layers, n_given = network->n_given;
    for (int64_t j = 0; j < n; j++) space->in[0][j] = data->inputs + space->rows[j] * n_given;
    const float *weight = space->own;
    for (int64_t l = 0; l < n_layers; l++) {
        const int64_t n_in = sizes[l], n_out = sizes[l + 1], climbs = l == 0 && network->n_runs, relu = l + 1 < n_layers;
        layer(relu && !climbs, space->at[l + 1], n, weight, n_out, n_in, l ? n_in : n_given, space->in[l]);
        if (climbs) climb(space->at[1], n_out, space->table, ladders, space->rows, n, (int)relu);
        weight += (n_in + 1) * up_lanes(n_out);
    }
    gather_rows(space->out, space->in[n_layers], n, up(n), up_lanes(sizes[n_layers]));
}

/* Computes the gradient of the parameters from that of those outputs, or adds it to that of the previous blocks. */
static void block_back(const Network *network, const Ladders *ladders, Space *space, int64_t n, int adds) {
    const int64_t *sizes = network->sizes, n_layers = network->n_layers, n_last = sizes[n_layers];
    float *g = space->slope[0], *to = space->grad + space->n_packed;
    const float *turned = space->turned + turned_size(network);
    memset(space->out + n_last * WIDTH, 0, (size_t)((up_lanes(n_last) - n_last) * WIDTH) * sizeof(float));
    turn(g, up_lanes(n_last), space->out, WIDTH, up_lanes(n_last), (n + 3) / 4 * 4);
    for (int64_t l = n_layers - 1; l >= 0; l--) {
        const int64_t n_in = sizes[l], n_out = sizes[l + 1], stride = up_lanes(n_out);
        to -= (n_in + 1) * stride;
        outer(to, space->in[l], l ? n_in : network->n_given, g, n_out, n, adds);
        add_rows(to + n_in * stride, g, n_out, n, adds); /* of the bias */
        if (l == 0) break;
        turned -= up_lanes(n_in) * stride;
        const int64_t used = l == n_layers - 1 && network->detach_scores ? network->n_hypotheses * network->n_dims : n_out;
        for (int64_t j = 0; j < n; j++) space->to[j] = g + j * stride;
        float *back = space->slope[g == space->slope[0]];
        layer_back(back, n, turned, used, n_in, space->to, space->at[l]);
        g = back;
    }
    for (int64_t j = 0; network->n_runs && j < n; j++)
        climb_back(space->table_slope, g + j * up_lanes(sizes[1]), sizes[1], ladders, space->rows[j]);
}

/* The loss of a batch for model m of the batch, whose packed parameters are in `space`, and its packed gradient. */
static float batch_pass(const Network *network, const Rows *data, const Batch *batch, int64_t m, Space *space) {
    const int64_t n_rows = batch->n_rows, n_targets = network->n_targets;
    /* Blocks of equal numbers of rows, except for the last one; each has full vectors, because padded rows cost the same. */
    const int64_t n_blocks = (n_rows + WIDTH - 1) / WIDTH, even = up((n_rows + n_blocks - 1) / n_blocks);
    const int64_t base = batch->set_of_model[m] * data->n_set_rows + batch->first;
    const int64_t *order = batch->order ? batch->order + batch->order_of_model[m] * batch->order_stride : 0;
    const Ladders ladders = {network->n_given, network->n_runs, network->run_lengths, data->lower, data->between};
    const Rule rule = {network->n_hypotheses, network->n_dims, n_targets, (int)network->has_scores,
                       exponent(batch->temperature[m]), batch->epsilon[m], 1 / (float)n_targets,
                       1 / (float)(n_rows * n_targets), 1 / (float)n_rows * batch->score_weight};
    double loss = 0;
    if (network->n_runs) sum_weights(space->table, &ladders, space->own, network->sizes[1]);
    if (batch->gradient) {
        turn_weights(space->turned, network, space->own);
        memset(space->table_slope, 0, (size_t)space->n_table * sizeof(float));
    }
    for (int64_t start = 0; start < n_rows; start += even) {
        const int64_t n = n_rows - start < even ? n_rows - start : even, width = up(n);
        for (int64_t j = 0; j < width; j++) { /* rows beyond the batch are 0 and have no weight */
            space->rows[j] = j < n ? base + (order ? order[start + j] : start + j) : 0;
            space->count[j] = j < n ? (data->counts ? data->counts[space->rows[j]] : 1) : 0;
        }
        gather(space->target, data->targets, space->rows, n, width, n_targets * network->n_dims);
        block_forward(network, data, &ladders, space, n);
        loss += network->is_mixture
                    ? mixture_losses(network, rule.share, space->out, space->target, space->count, width, space->rest)
                    : block_losses((int)network->absolute, &rule, space->out, space->target, space->count, width, space->rest);
        if (batch->gradient) block_back(network, &ladders, space, n, start > 0);
    }
    if (batch->gradient && network->n_runs) sum_slopes(space->table_slope, &ladders, space->grad, network->sizes[1]);
    return (float)(loss - 0 * loss); /* NaN for infinity */
}

static void training_step(const Network *network, const Rows *data, const Batch *batch) {
    Space space;
    divide(&space, network, batch->scratch);
    for (int64_t m = 0; m < batch->n_models; m++) {
        pack(space.own, network, batch->flat + m * batch->n_parameters);
        batch->loss[m] = batch_pass(network, data, batch, m, &space);
        if (batch->gradient) unpack(batch->gradient + m * batch->n_parameters, network, space.grad);
    }
}

/* Not inlined: in a large function the factors would not stay in registers. */
__attribute__((noinline)) static void adam_update(const Adam *adam) {
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
    const int64_t n_batches = epochs->n_batches, n_steps = epochs->n_epochs * n_batches, *bounds = epochs->bounds;
    Space space;
    divide(&space, network, batch->scratch);
    for (int64_t m = epochs->first; m < epochs->last; m++) {
        const int64_t at = m * batch->n_parameters;
        for (int64_t step = 0; step < n_steps; step++) epochs->losses[step * batch->n_models + m] = 0;
        if (!epochs->active[m]) continue;
        pack(space.own, network, adam->flat + at);
        pack(space.mean, network, adam->mean + at), pack(space.square, network, adam->square + at);
        Batch own = *batch;
        Adam change = *adam;
        change.n_models = 1, change.n_parameters = space.n_packed, change.flat = space.own, change.gradient = space.grad;
        change.mean = space.mean, change.square = space.square;
        change.n_steps = epochs->n_steps + m, change.decay += adam->decay ? m : 0;
        for (int64_t step = 0; step < n_steps; step++) {
            const int64_t e = step / n_batches, b = step % n_batches;
            own.temperature = batch->temperature + 2 * e * batch->n_models;
            own.epsilon = own.temperature + batch->n_models;
            own.first = batch->order ? 0 : bounds[b];
            own.order = batch->order ? batch->order + e * epochs->n_ordered + bounds[b] : 0;
            own.n_rows = bounds[b + 1] - bounds[b];
            epochs->losses[step * batch->n_models + m] = batch_pass(network, data, &own, m, &space);
            const int finite = all_finite(space.grad, space.n_packed);
            const float rate = finite ? adam->rate[e * batch->n_models + m] : 0;
            if (!finite) memset(space.grad, 0, (size_t)space.n_packed * sizeof(float));
            change.rate = &rate, epochs->n_steps[m]++;
            adam_update(&change);
        }
        unpack(adam->flat + at, network, space.own);
        unpack(adam->mean + at, network, space.mean), unpack(adam->square + at, network, space.square);
    }
}
