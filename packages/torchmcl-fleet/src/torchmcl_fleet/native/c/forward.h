/* The normal kernels that mixture networks predict: a forward pass, softmax and softplus, a few rows at a time. Included
   after step.h, whose layers and layout it shares. */

/* How many floats of scratch memory a forward pass needs. */
static int64_t forward_scratch(const Network *network) { return scratch_size(network); }

/* Logits [n_k][WIDTH] become the powers that shares are proportional to. */
static void powers_in_place(float *logits, int64_t n_k, int64_t width) {
    for (int64_t j = 0; j < width; j += LANES) {
        vec highest = load(logits + j);
        for (int64_t k = 1; k < n_k; k++) highest = larger(load(logits + k * WIDTH + j), highest);
        for (int64_t i = j; i < n_k * WIDTH; i += WIDTH)
            store(logits + i, vanishing_powers(1.44269504f * (load(logits + i) - highest)));
    }
}

/* Raw scales [n][WIDTH] become scales. */
static void scales_in_place(float *raw, int64_t n, float min_scale, int64_t width) {
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = k * WIDTH; i < k * WIDTH + width; i += LANES) {
            const vec x = load(raw + i), power = vanishing_powers(-1.44269504f * size_of(x)), most = 1.0f + power;
            const vec lost = (power - (most - 1.0f)) / most; /* what 1 + power was rounded by */
            store(raw + i, (vec)((ivec)x & ~(x < 0.0f)) + (logarithms(most) + lost) + min_scale);
        }
}

/* Columns of a block [n_values][WIDTH] into rows [n][n_values] of doubles, `stride` apart. */
static void hand_over(double *to, int64_t stride, const float *from, int64_t n_values, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        for (int64_t v = 0; v < n_values; v++) to[j * stride + v] = (double)from[v * WIDTH + j];
}

/* The same for powers, as shares that sum to `whole` in double precision. */
static void hand_over_shares(double *to, int64_t stride, const float *from, int64_t n_k, int64_t n, double whole) {
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t k = 0; k < n_k; k++) sum += (double)from[k * WIDTH + j];
        const double part = whole / sum;
        for (int64_t k = 0; k < n_k; k++) to[j * stride + k] = part * (double)from[k * WIDTH + j];
    }
}

/* Network by network: its weights and its table stay in the second cache. A row does not depend on the others. */
static void forward_pass(const Network *network, const Rows *data, const Forward *forward) {
    const int64_t n_k = network->n_hypotheses, n_values = n_k * network->n_dims;
    const int64_t n_all = n_k * forward->n_models; /* kernels of a row */
    const Ladders ladders = {network->n_given, network->n_runs, network->run_lengths, data->lower, data->between};
    Space space;
    divide(&space, network, forward->scratch);
    float *logits = space.out + n_values * WIDTH, *raw = logits + n_k * WIDTH;
    for (int64_t m = 0; m < forward->n_models; m++) {
        pack(space.own, network, forward->flat + m * forward->n_parameters);
        if (network->n_runs) sum_weights(space.table, &ladders, space.own, network->sizes[1]);
        for (int64_t start = forward->first; start < forward->last; start += WIDTH) {
            const int64_t n = forward->last - start < WIDTH ? forward->last - start : WIDTH, width = up(n);
            for (int64_t j = 0; j < n; j++) space.rows[j] = start + j;
            block_forward(network, data, &ladders, &space, n);
            powers_in_place(logits, n_k, width);
            const int64_t first = (start * n_all + m * n_k) * network->n_dims, stride = n_all * network->n_dims;
            hand_over(forward->values + first, stride, space.out, n_values, n);
            hand_over_shares(forward->shares + start * n_all + m * n_k, n_all, logits, n_k, n, 1 / (double)forward->n_models);
            if (!forward->widths) continue;
            scales_in_place(raw, n_values, network->min_scale, width);
            hand_over(forward->widths + first, stride, raw, n_values, n);
        }
    }
}
