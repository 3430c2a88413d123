/* Squared distances of all hypotheses and targets of each sample, and their gradients: differences first, so that a large
   common offset costs no accuracy. Included after step.h. */

#if defined(__x86_64__) && VECTOR_BYTES < 64
#define SOME_T 2 /* targets of a tile of distances: with four hypotheses they fill the registers */
#define MANY_K 4 /* hypotheses of a tile of gradients */
#else
#define SOME_T 4
#define MANY_K 8
#endif
#define FEW_DIMS 4

static int64_t pairs_scratch(const Pairs *pairs) {
    return (2 * pairs->n_targets + 1) * (pairs->n_dims + LANES) + pairs->n_targets * MANY_K;
}

/* Few dimensions: as many loops as there are numbers of them, which the compiler turns into vectors. */
ALWAYS void few_costs(const Pairs *pairs, int64_t sample, int n_d) {
    const int64_t n_k = pairs->n_hypotheses, n_t = pairs->n_targets;
    const float *h = pairs->hypotheses + sample * n_k * n_d, *t = pairs->targets + sample * n_t * n_d;
    for (int64_t i = 0; i < n_t; i++) {
        float *restrict cost = pairs->cost + (sample * n_t + i) * n_k;
        const float *y = t + i * n_d;
        for (int64_t k = 0; k < n_k; k++) {
            float sum = 0;
            for (int d = 0; d < n_d; d++) sum += (h[k * n_d + d] - y[d]) * (h[k * n_d + d] - y[d]);
            cost[k] = sum;
        }
    }
}

ALWAYS void few_pulls(const Pairs *pairs, int64_t sample, int n_d) {
    const int64_t n_k = pairs->n_hypotheses, n_t = pairs->n_targets;
    const float *h = pairs->hypotheses + sample * n_k * n_d, *t = pairs->targets + sample * n_t * n_d;
    float *restrict to = pairs->to_hypotheses + sample * n_k * n_d;
    for (int64_t i = 0; i < n_t; i++) {
        const float *g = pairs->grad + (sample * n_t + i) * n_k, *y = t + i * n_d;
        for (int64_t k = 0; k < n_k; k++)
            for (int d = 0; d < n_d; d++)
                to[k * n_d + d] = (i ? to[k * n_d + d] : 0) + 2 * g[k] * (h[k * n_d + d] - y[d]);
    }
}

#define FOR_DIMS(function, pairs, sample)                    \
    switch ((pairs)->n_dims) {                          \
    case 1: function(pairs, sample, 1); break;          \
    case 2: function(pairs, sample, 2); break;          \
    case 3: function(pairs, sample, 3); break;          \
    default: function(pairs, sample, 4);                \
    }

/* The sums of the lanes of four vectors. */
ALWAYS four totals(const vec *v) {
#if defined(HAS_SHUFFLE)
    const vec first = EACH_FOUR(v[0], v[1], 0, 4, 1, 5) + EACH_FOUR(v[0], v[1], 2, 6, 3, 7);
    const vec second = EACH_FOUR(v[2], v[3], 0, 4, 1, 5) + EACH_FOUR(v[2], v[3], 2, 6, 3, 7);
    return folded(EACH_FOUR(first, second, 0, 1, 4, 5) + EACH_FOUR(first, second, 2, 3, 6, 7));
#else
    return (four){sum_of(v[0]), sum_of(v[1]), sum_of(v[2]), sum_of(v[3])};
#endif
}

/* Many dimensions: the costs of four hypotheses and SOME_T targets. */
ALWAYS void long_tile(float *cost, const float *const *h, const float *const *t, int64_t n_d, int n_h, int n_t,
                      int64_t stride) {
    vec sum[SOME_T][4];
    for (int i = 0; i < SOME_T; i++)
        for (int k = 0; k < 4; k++) sum[i][k] = (vec){0};
    int64_t d = 0;
    for (; d + LANES <= n_d; d += LANES) {
        vec x[4];
        for (int k = 0; k < 4; k++) x[k] = (vec) * (const loose *)(h[k] + d);
        for (int i = 0; i < SOME_T; i++) {
            const vec y = (vec) * (const loose *)(t[i] + d);
            for (int k = 0; k < 4; k++) {
                const vec apart = x[k] - y;
                sum[i][k] += apart * apart;
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < SOME_T; i++) { /* all of them, so that the sums stay in registers */
        four all = totals(sum[i]);
        if (i >= n_t) continue;
        for (int64_t e = d; e < n_d; e++)
            for (int k = 0; k < 4; k++) all[k] += (h[k][e] - t[i][e]) * (h[k][e] - t[i][e]);
        if (n_h == 4)
            *(four *)(cost + i * stride) = all;
        else
            for (int k = 0; k < 4; k++)
                if (k < n_h) cost[i * stride + k] = all[k];
    }
}

static void long_costs(const Pairs *pairs, int64_t sample) {
    const int64_t n_k = pairs->n_hypotheses, n_t = pairs->n_targets, n_d = pairs->n_dims;
    const float *h = pairs->hypotheses + sample * n_k * n_d, *t = pairs->targets + sample * n_t * n_d;
    float *cost = pairs->cost + sample * n_t * n_k;
    for (int64_t k = 0; k < n_k; k += 4)
        for (int64_t i = 0; i < n_t; i += SOME_T) {
            const int n_h = n_k - k < 4 ? (int)(n_k - k) : 4, n_own = n_t - i < SOME_T ? (int)(n_t - i) : SOME_T;
            const float *own[4], *other[SOME_T]; /* beyond the last, the last again */
            for (int s = 0; s < 4; s++) own[s] = h + (k + (s < n_h ? s : n_h - 1)) * n_d;
            for (int s = 0; s < SOME_T; s++) other[s] = t + (i + (s < n_own ? s : n_own - 1)) * n_d;
            long_tile(cost + i * n_k + k, own, other, n_d, n_h, n_own, n_k);
        }
}

/* The mean of the targets weighted by the size of their gradients: an origin near the points, to which padded targets do
   not contribute. */
static void centre_of(float *centre, const float *t, const float *grad, int64_t n_t, int64_t n_k, int64_t n_d) {
    double all = 0;
    memset(centre, 0, (size_t)n_d * sizeof(float));
    for (int64_t i = 0; i < n_t; i++) {
        float size = 0;
        for (int64_t k = 0; k < n_k; k++) size += fabsf(grad[i * n_k + k]);
        if (!(size <= FLT_MAX) || size == 0) continue;
        all += size;
        for (int64_t d = 0; d < n_d; d++) centre[d] += (float)(size / all) * (t[i * n_d + d] - centre[d]);
    }
}

/* What `n` hypotheses and all targets do to each other; `g` are the gradients [targets][MANY_K], `y` the targets and `sums`
   the gradients at these, around the centre. */
ALWAYS void long_pull(int n, const Pairs *pairs, const float *h, float *to_h, const float *g, const float *y, float *sums,
                      const float *centre, int64_t wide) {
    const int64_t n_d = pairs->n_dims, n_t = pairs->n_targets;
    float total[MANY_K] = {0};
    int64_t d = 0;
    for (int64_t i = 0; i < n_t; i++)
        for (int k = 0; k < n; k++) total[k] += g[i * MANY_K + k];
    for (; d + LANES <= n_d; d += LANES) {
        vec x[MANY_K], pull[MANY_K];
        for (int k = 0; k < n; k++) {
            x[k] = (vec) * (const loose *)(h + k * n_d + d) - load(centre + d);
            pull[k] = total[k] * x[k];
        }
        for (int64_t i = 0; i < n_t; i++) {
            const vec own = load(y + i * wide + d);
            vec sum = load(sums + i * wide + d);
            for (int k = 0; k < n; k++) {
                const float slope = g[i * MANY_K + k];
                pull[k] -= slope * own, sum += slope * x[k];
            }
            store(sums + i * wide + d, sum);
        }
        if (to_h)
            for (int k = 0; k < n; k++) *(loose *)(to_h + k * n_d + d) = (loose)pull[k];
    }
    for (; d < n_d; d++)
        for (int k = 0; k < n; k++) {
            const float x = h[k * n_d + d] - centre[d];
            float pull = total[k] * x;
            for (int64_t i = 0; i < n_t; i++)
                pull -= g[i * MANY_K + k] * y[i * wide + d], sums[i * wide + d] += g[i * MANY_K + k] * x;
            if (to_h) to_h[k * n_d + d] = pull;
        }
}

static void long_pulls(const Pairs *pairs, int64_t sample) {
    const int64_t n_k = pairs->n_hypotheses, n_t = pairs->n_targets, n_d = pairs->n_dims;
    const int64_t wide = (n_d + LANES - 1) / LANES * LANES;
    const float *h = pairs->hypotheses + sample * n_k * n_d, *t = pairs->targets + sample * n_t * n_d;
    const float *grad = pairs->grad + sample * n_t * n_k;
    float *to_h = pairs->to_hypotheses ? pairs->to_hypotheses + sample * n_k * n_d : 0;
    float *centre = pairs->scratch, *y = centre + wide, *sums = y + n_t * wide, *g = sums + n_t * wide;
    memset(centre, 0, (size_t)((2 * n_t + 1) * wide) * sizeof(float));
    centre_of(centre, t, grad, n_t, n_k, n_d);
    for (int64_t i = 0; i < n_t; i++)
        for (int64_t d = 0; d < n_d; d++) y[i * wide + d] = t[i * n_d + d] - centre[d];
    for (int64_t k = 0; k < n_k; k += MANY_K) {
        const int64_t n = n_k - k < MANY_K ? n_k - k : MANY_K;
        for (int64_t i = 0; i < n_t; i++)
            for (int64_t s = 0; s < MANY_K; s++) g[i * MANY_K + s] = s < n ? 2.0f * grad[i * n_k + k + s] : 0;
        for (int64_t s = 0; n < MANY_K && s < n; s++) /* one by one, as the tile would end behind the last */
            long_pull(1, pairs, h + (k + s) * n_d, to_h ? to_h + (k + s) * n_d : 0, g + s, y, sums, centre, wide);
        if (n == MANY_K) long_pull(MANY_K, pairs, h + k * n_d, to_h ? to_h + k * n_d : 0, g, y, sums, centre, wide);
    }
    for (int64_t i = 0; pairs->to_targets && i < n_t; i++) {
        double total = 0;
        for (int64_t k = 0; k < n_k; k++) total += 2.0 * grad[i * n_k + k];
        for (int64_t d = 0; d < n_d; d++)
            pairs->to_targets[(sample * n_t + i) * n_d + d] = (float)total * y[i * wide + d] - sums[i * wide + d];
    }
}

static void pair_costs(const Pairs *pairs) {
    for (int64_t sample = pairs->first; sample < pairs->last; sample++)
        if (pairs->n_dims > FEW_DIMS)
            long_costs(pairs, sample);
        else
            FOR_DIMS(few_costs, pairs, sample)
}

static void pair_pulls(const Pairs *pairs) {
    for (int64_t sample = pairs->first; sample < pairs->last; sample++)
        if (pairs->n_dims > FEW_DIMS)
            long_pulls(pairs, sample);
        else
            FOR_DIMS(few_pulls, pairs, sample)
}
