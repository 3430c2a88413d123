/* The normal kernels that mixture networks predict: a forward pass, softmax and softplus, a few rows at a time. Included
   after step.h, whose layers and layout it shares. */

/* How many floats of scratch memory a forward pass needs. */
static int64_t forward_scratch(const Network *network) {
    const int64_t *sizes = network->sizes;
    int64_t floats = sizes[0] * WIDTH;
    for (int64_t l = 0; l < network->n_layers; l++) floats += sizes[l + 1] * (WIDTH + sizes[l]);
    return floats + table_size(network->n_runs, network->run_lengths, network->sizes[1]);
}

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

/* The weights of each layer as [in][out]: the factors of neighboring outputs lie side by side. */
static void turn_weights(float *to, const Network *network, const float *flat) {
    for (int64_t l = 0; l < network->n_layers; l++) {
        const int64_t n_in = network->sizes[l], n_out = network->sizes[l + 1];
        turn(to, n_out, flat, n_in, n_out, n_in);
        to += n_out * n_in, flat += n_out * (n_in + 1);
    }
}

/* Network by network: its weights and its table stay in the second cache. A row does not depend on the others. */
static void forward_pass(const Network *network, const Rows *data, const Forward *forward) {
    const int64_t *sizes = network->sizes, n_layers = network->n_layers, n_runs = network->n_runs;
    const int64_t n_k = network->n_hypotheses, n_values = n_k * network->n_dims, n_given = network->n_given;
    const int64_t n_all = n_k * forward->n_models; /* kernels of a row */
    float *at[17], *place = forward->scratch;      /* activations of each layer */
    for (int64_t l = 0; l <= n_layers; l++) at[l] = place, place += sizes[l] * WIDTH;
    float *table = place, *turned = place + table_size(n_runs, network->run_lengths, sizes[1]);
    float *logits = at[n_layers] + n_values * WIDTH, *raw = logits + n_k * WIDTH;
    const Ladders ladders = {n_given, n_runs, network->run_lengths, data->lower, data->between};
    int64_t rows[WIDTH];
    for (int64_t m = 0; m < forward->n_models; m++) {
        const float *own = forward->flat + m * forward->n_parameters;
        turn_weights(turned, network, own);
        if (n_runs) sum_weights(table, &ladders, own, sizes[1], sizes[0]);
        for (int64_t start = forward->first; start < forward->last; start += WIDTH) {
            const int64_t n = forward->last - start < WIDTH ? forward->last - start : WIDTH, width = up(n);
            for (int64_t j = 0; j < n; j++) rows[j] = start + j;
            gather(at[0], data->inputs, rows, n, width, n_given);
            const float *bias = own, *weight = turned;
            for (int64_t l = 0; l < n_layers; l++) {
                const int64_t n_in = sizes[l], n_out = sizes[l + 1], climbs = l == 0 && n_runs;
                bias += n_out * n_in;
                if (climbs || l + 1 == n_layers) {
                    const int64_t n_used = l + 1 < n_layers || forward->widths ? n_out : n_values + n_k;
                    mix(PLAIN, at[l + 1], weight, 1, n_out, n_used, climbs ? n_given : n_in, at[l], bias, 0, width);
                } else
                    mix(RELU, at[l + 1], weight, 1, n_out, n_out, n_in, at[l], bias, 0, width);
                if (climbs) climb(at[1], n_out, table, &ladders, rows, n, n_layers > 1);
                bias += n_out, weight += n_out * n_in;
            }
            powers_in_place(logits, n_k, width);
            const int64_t first = (start * n_all + m * n_k) * network->n_dims, stride = n_all * network->n_dims;
            hand_over(forward->values + first, stride, at[n_layers], n_values, n);
            hand_over_shares(forward->shares + start * n_all + m * n_k, n_all, logits, n_k, n, 1 / (double)forward->n_models);
            if (!forward->widths) continue;
            scales_in_place(raw, n_values, network->min_scale, width);
            hand_over(forward->widths + first, stride, raw, n_values, n);
        }
    }
}
