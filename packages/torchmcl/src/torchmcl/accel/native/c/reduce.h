/* A selection of hypotheses, row by row: greedy, by exchange, or moved to the means of their groups.

   It computes the definitions of `torchmcl.postprocess` in single precision. Included after step.h, which defines the vectors. */

/* The sum over hypotheses of the reduction that a candidate brings to the lowest loss so far. */
ALWAYS float gain_of(const float *nearest, const float *loss, const float *weights, int64_t n) {
    vec sum = {0};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        vec a, b, w;
        memcpy(&a, nearest + j, sizeof a);
        memcpy(&b, loss + j, sizeof b);
        memcpy(&w, weights + j, sizeof w);
        vec gain = a - b;
        sum += w * (vec)((ivec)gain & (gain > 0.0f));
    }
    float total = 0;
    for (int i = 0; i < LANES; i++) total += sum[i];
    for (; j < n; j++)
        if (nearest[j] > loss[j]) total += weights[j] * (nearest[j] - loss[j]);
    return total;
}

/* The expected loss of a candidate. */
ALWAYS float dot_of(const float *loss, const float *weights, int64_t n) {
    vec sum = {0};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        vec a, w;
        memcpy(&a, loss + j, sizeof a);
        memcpy(&w, weights + j, sizeof w);
        sum += a * w;
    }
    float total = 0;
    for (int i = 0; i < LANES; i++) total += sum[i];
    for (; j < n; j++) total += weights[j] * loss[j];
    return total;
}

static int64_t largest(const float *values, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (values[i] > values[best]) best = i;
    return best;
}

/* Selects among n candidates, whose losses are [n][width]. The gain of a candidate only falls as others are chosen: an old
   gain is an upper bound, and few gains are recomputed. */
static void choose_greedily(int64_t n, int64_t n_kept, int64_t width, const float *loss, const float *weights,
                            int64_t *chosen, float *nearest, float *gains, int64_t *age) {
    float lowest = INFINITY;
    chosen[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        const float total = dot_of(loss + i * width, weights, width);
        if (total < lowest) lowest = total, chosen[0] = i;
    }
    memcpy(nearest, loss + chosen[0] * width, (size_t)width * sizeof *nearest);
    for (int64_t i = 0; i < n; i++) {
        gains[i] = gain_of(nearest, loss + i * width, weights, width);
        age[i] = 1;
    }
    gains[chosen[0]] = -1.0f; /* below every other gain: none is chosen twice */
    for (int64_t pick = 1; pick < n_kept; pick++) {
        int64_t best = largest(gains, n);
        while (age[best] != pick && gains[best] >= 0.0f) {
            gains[best] = gain_of(nearest, loss + best * width, weights, width);
            age[best] = pick;
            best = largest(gains, n);
        }
        chosen[pick] = best;
        const float *own = loss + best * width;
        for (int64_t j = 0; j < width; j++) nearest[j] = own[j] < nearest[j] ? own[j] : nearest[j];
        gains[best] = -1.0f;
    }
}

/* The first and second lowest loss of each hypothesis among the chosen, and which of them has the lowest. */
static void two_nearest(const Choice *c, const float *loss, const int64_t *chosen, float *first, float *second,
                        int64_t *owner) {
    const int64_t n = c->n_hypotheses;
    for (int64_t j = 0; j < n; j++) first[j] = second[j] = INFINITY, owner[j] = 0;
    for (int64_t p = 0; p < c->n_kept; p++) {
        const float *own = loss + chosen[p] * n;
        for (int64_t j = 0; j < n; j++) {
            if (own[j] < first[j])
                second[j] = first[j], first[j] = own[j], owner[j] = p;
            else if (own[j] < second[j])
                second[j] = own[j];
        }
    }
}

/* Exchanges one of the chosen for another as long as that lowers the expected loss. */
static void exchange(const Choice *c, const float *loss, const float *weights, int64_t *chosen, float *first,
                     float *second, float *change, int64_t *owner) {
    const int64_t n = c->n_hypotheses, k = c->n_kept;
    for (int64_t round = 0; round < c->n_exchanges; round++) {
        two_nearest(c, loss, chosen, first, second, owner);
        float lowest = -16 * FLT_EPSILON * dot_of(first, weights, n); /* larger than rounding errors */
        int64_t in = -1, out = 0;
        for (int64_t i = 0; i < n; i++) {
            const float *own = loss + i * n;
            float gained = 0;
            for (int64_t p = 0; p < k; p++) change[p] = 0;
            for (int64_t j = 0; j < n; j++) {
                const float closer = own[j] < first[j] ? own[j] : first[j];
                const float without = own[j] < second[j] ? own[j] : second[j];
                gained += weights[j] * (closer - first[j]);
                change[owner[j]] += weights[j] * (without - closer);
            }
            for (int64_t p = 0; p < k; p++)
                if (gained + change[p] < lowest) lowest = gained + change[p], in = i, out = p;
        }
        if (in < 0) break;
        chosen[out] = in;
    }
}

static int64_t choice_scratch(const Choice *c) { return 3 * c->n_hypotheses + c->n_hypotheses % 2 + 2 * c->n_hypotheses; }

static void choose_rows(const Choice *c) {
    const int64_t n = c->n_hypotheses, k = c->n_kept;
    float *first = c->scratch, *second = first + n, *change = second + n;
    int64_t *places = (int64_t *)(c->scratch + 3 * n + n % 2);
    for (int64_t row = 0; row < c->n_rows; row++) {
        const float *loss = c->loss + row * n * n, *weights = c->weights + row * n;
        int64_t *chosen = c->chosen + row * k;
        choose_greedily(n, k, n, loss, weights, chosen, first, second, places);
        if (c->n_exchanges) exchange(c, loss, weights, chosen, first, second, change, places);
    }
}

/* Squared distances [n][width] of `count` points to all, which are also given as [dims][width]. They are computed from
   differences: |x|^2 + |y|^2 - 2 x.y loses all digits for near points far from the origin. */
ALWAYS void distances_of(int count, int64_t n_dims, const float *from, const float *turned, int64_t width, float *out) {
    for (int64_t j = 0; j < width; j += STEP * LANES) {
        vec sum[4][STEP];
        for (int p = 0; p < count; p++)
            for (int s = 0; s < STEP; s++) sum[p][s] = (vec){0};
        for (int64_t d = 0; d < n_dims; d++) {
            const vec *x = (const vec *)(turned + d * width + j);
            for (int p = 0; p < count; p++)
                for (int s = 0; s < STEP; s++) {
                    const vec difference = from[p * n_dims + d] - x[s];
                    sum[p][s] += difference * difference;
                }
        }
        for (int p = 0; p < count; p++)
            for (int s = 0; s < STEP; s++) *(vec *)(out + p * width + j + s * LANES) = sum[p][s];
    }
}

static void all_distances(int64_t n, int64_t n_dims, const float *points, const float *turned, int64_t width,
                          float *out) {
    for (int64_t i = 0; i < n; i += 4) {
        const float *from = points + i * n_dims;
        float *to = out + i * width;
        switch (n - i) {
        case 1: distances_of(1, n_dims, from, turned, width, to); break;
        case 2: distances_of(2, n_dims, from, turned, width, to); break;
        case 3: distances_of(3, n_dims, from, turned, width, to); break;
        default: distances_of(4, n_dims, from, turned, width, to);
        }
    }
}

/* Squared distances of 4 centres to all hypotheses, which are transposed: [dims][width]. Keeps the nearest of each. */
ALWAYS void nearest_of(int count, const Means *m, const float *centres, int first, const float *points, int64_t width,
                       float *lowest, int32_t *owner) {
    const int64_t n_dims = m->n_dims;
    for (int64_t j = 0; j < width; j += STEP * LANES) {
        vec sum[4][STEP];
        for (int p = 0; p < count; p++)
            for (int s = 0; s < STEP; s++) sum[p][s] = (vec){0};
        for (int64_t d = 0; d < n_dims; d++) {
            const vec *x = (const vec *)(points + d * width + j);
            for (int p = 0; p < count; p++)
                for (int s = 0; s < STEP; s++) {
                    const vec difference = centres[p * n_dims + d] - x[s];
                    sum[p][s] += difference * difference;
                }
        }
        for (int s = 0; s < STEP; s++) {
            vec low = *(vec *)(lowest + j + s * LANES);
            ivec place = *(ivec *)(owner + j + s * LANES);
            for (int p = 0; p < count; p++) {
                const vec cost = sum[p][s];
                const ivec closer = cost < low;
                low = (vec)(((ivec)cost & closer) | ((ivec)low & ~closer));
                place = ((first + p) & closer) | (place & ~closer);
            }
            *(vec *)(lowest + j + s * LANES) = low;
            *(ivec *)(owner + j + s * LANES) = place;
        }
    }
}

static void assign(const Means *m, const float *centres, const float *points, int64_t width, float *lowest,
                   int32_t *owner) {
    for (int64_t j = 0; j < width; j++) lowest[j] = INFINITY, owner[j] = 0;
    for (int64_t p = 0; p < m->n_kept; p += 4) {
        const float *from = centres + p * m->n_dims;
        switch (m->n_kept - p) {
        case 1: nearest_of(1, m, from, (int)p, points, width, lowest, owner); break;
        case 2: nearest_of(2, m, from, (int)p, points, width, lowest, owner); break;
        case 3: nearest_of(3, m, from, (int)p, points, width, lowest, owner); break;
        default: nearest_of(4, m, from, (int)p, points, width, lowest, owner);
        }
    }
}

/* Moves each centre to the mean of its group; one without a group stays. */
static void move(const Means *m, const float *points, const float *weights, const int32_t *owner, float *centres,
                 float *sums, float *masses) {
    const int64_t n_dims = m->n_dims;
    memset(sums, 0, (size_t)(m->n_kept * n_dims) * sizeof *sums);
    memset(masses, 0, (size_t)m->n_kept * sizeof *masses);
    for (int64_t j = 0; j < m->n_hypotheses; j++) {
        float *to = sums + owner[j] * n_dims;
        for (int64_t d = 0; d < n_dims; d++) to[d] += weights[j] * points[j * n_dims + d];
        masses[owner[j]] += weights[j];
    }
    for (int64_t p = 0; p < m->n_kept; p++)
        if (masses[p] > 0)
            for (int64_t d = 0; d < n_dims; d++) centres[p * n_dims + d] = sums[p * n_dims + d] / masses[p];
}

static int64_t padded(int64_t n) { return (n + STEP * LANES - 1) / (STEP * LANES) * (STEP * LANES); }

/* All arrays of a row, in one block of memory; all sizes but the last are multiples of a cache line. */
typedef struct {
    int64_t width;
    float *turned, *points, *loss, *weights, *nearest, *gains, *sums, *masses, *mean;
    int32_t *owner, *last;
    int64_t *age, *chosen;
} Row;

static int64_t row_memory(const Means *m, Row *row, float *memory) {
    const int64_t n = m->n_hypotheses, width = padded(n), dims = padded(m->n_dims), kept = padded(m->n_kept);
    float *at = memory;
    *row = (Row){.width = width};
    row->turned = at, at += width * m->n_dims;
    row->points = at, at += width * m->n_dims;
    row->loss = at, at += n * width;
    row->weights = at, at += width;
    row->nearest = at, at += width;
    row->gains = at, at += width;
    row->sums = at, at += kept * dims;
    row->masses = at, at += kept;
    row->mean = at, at += dims;
    row->owner = (int32_t *)at, at += width;
    row->last = (int32_t *)at, at += width;
    row->age = (int64_t *)at, at += 2 * width;
    row->chosen = (int64_t *)at, at += 2 * kept;
    return at - memory;
}

static int64_t means_scratch(const Means *m) {
    Row row;
    return row_memory(m, &row, 0);
}

/* Reads the hypotheses of a row, relative to their mean: far from 0, distances would lose digits. */
static void read_row(const Means *m, const Row *row, const float *points, const float *weights) {
    const int64_t n = m->n_hypotheses, n_dims = m->n_dims;
    memcpy(row->weights, weights, (size_t)n * sizeof *weights);
    memset(row->mean, 0, (size_t)n_dims * sizeof *row->mean);
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < n_dims; d++) row->mean[d] += weights[j] * points[j * n_dims + d];
    for (int64_t j = 0; j < n; j++) {
        for (int64_t d = 0; d < n_dims; d++)
            row->points[j * n_dims + d] = row->turned[d * row->width + j] = points[j * n_dims + d] - row->mean[d];
        row->last[j] = -1;
    }
}

static void move_rows(const Means *m) {
    const int64_t n = m->n_hypotheses, n_dims = m->n_dims, k = m->n_kept;
    Row row;
    memset(m->scratch, 0, (size_t)row_memory(m, &row, m->scratch) * sizeof *m->scratch); /* padding has weight 0 */
    for (int64_t r = 0; r < m->n_rows; r++) {
        float *centres = m->centres + r * k * n_dims;
        read_row(m, &row, m->points + r * n * n_dims, m->weights + r * n);
        all_distances(n, n_dims, row.points, row.turned, row.width, row.loss);
        choose_greedily(n, k, row.width, row.loss, row.weights, row.chosen, row.nearest, row.gains, row.age);
        for (int64_t p = 0; p < k; p++)
            memcpy(centres + p * n_dims, row.points + row.chosen[p] * n_dims, (size_t)n_dims * sizeof *centres);
        for (int64_t round = 0; round <= m->n_rounds; round++) {
            assign(m, centres, row.turned, row.width, row.nearest, row.owner);
            if (round == m->n_rounds || !memcmp(row.owner, row.last, (size_t)n * sizeof *row.owner)) break;
            memcpy(row.last, row.owner, (size_t)n * sizeof *row.owner);
            move(m, row.points, row.weights, row.owner, centres, row.sums, row.masses);
        }
        float *masses = m->masses + r * k;
        memset(masses, 0, (size_t)k * sizeof *masses);
        for (int64_t j = 0; j < n; j++) masses[row.owner[j]] += row.weights[j];
        for (int64_t p = 0; p < k; p++)
            for (int64_t d = 0; d < n_dims; d++) centres[p * n_dims + d] += row.mean[d];
    }
}
