/* Costs, weights, losses and scores of a block of rows, stored as [values][WIDTH], and their gradient. Included by
   step.h. */

typedef struct {
    int64_t n_hypotheses, n_dims, n_targets;
    int has_scores;
    float factor, epsilon; /* softmin with 2^(factor * excess) where factor < 0, else winner weights */
    float part;            /* 1 / targets of a row */
    float share;           /* 1 / targets of the batch */
    float score_share;     /* weight of the score loss / rows of the batch */
} Rule;

/* The contribution of one coordinate to the cost, and its derivative. */
ALWAYS vec element(int absolute, vec difference) { return absolute ? size_of(difference) : difference * difference; }

ALWAYS vec slope_of(int absolute, vec difference) {
    if (!absolute) return 2.0f * difference;
    return (vec)((ivec)all_of(1.0f) & (difference > 0.0f)) - (vec)((ivec)all_of(1.0f) & (difference < 0.0f));
}

/* Temporary arrays of the loss of a block of rows; each is [WIDTH] or [n_hypotheses][WIDTH]. */
typedef struct {
    float *lowest, *sum, *loss, *winner; /* the winner as a float, so that all lanes have one size */
    float *cost, *weight;
    float *labels; /* the share of a row's targets that each hypothesis wins, where there are several */
    float *slopes; /* [n_hypotheses * n_dims][WIDTH], of several targets */
} Work;

/* The cost of each hypothesis for one target of each row, and the cheapest hypothesis. */
ALWAYS void costs_of(int absolute, const Rule *rule, const float *out, const float *target, int64_t width, Work *work) {
    const int64_t n_k = rule->n_hypotheses, n_d = rule->n_dims;
    for (int64_t j = 0; j < width; j += LANES) {
        vec lowest = {0}, winner = {0};
        for (int64_t k = 0; k < n_k; k++) {
            vec cost = {0};
            for (int64_t d = 0; d < n_d; d++)
                cost += element(absolute, load(out + (k * n_d + d) * WIDTH + j) - load(target + d * WIDTH + j));
            store(work->cost + k * WIDTH + j, cost);
            const ivec lower = k ? cost < lowest : ~(ivec){0};
            lowest = pick(lower, cost, lowest), winner = pick(lower, all_of((float)k), winner);
        }
        store(work->lowest + j, lowest), store(work->winner + j, winner);
    }
}

/* The weight of each hypothesis, before multiplication by `sum`. */
ALWAYS void weights_of(const Rule *rule, const float *counts, int64_t width, Work *work) {
    const int64_t n_k = rule->n_hypotheses;
    const float top = n_k > 1 ? 1 - rule->epsilon : 1, rest = n_k > 1 ? rule->epsilon / (float)(n_k - 1) : 0;
    for (int64_t j = 0; j < width; j += LANES) {
        if (!(rule->factor < 0)) {
            const vec winner = load(work->winner + j);
            for (int64_t k = 0; k < n_k; k++)
                store(work->weight + k * WIDTH + j, pick(winner == (float)k, all_of(top), all_of(rest)));
            store(work->sum + j, load(counts + j));
            continue;
        }
        const vec lowest = load(work->lowest + j);
        vec sum = {0};
        for (int64_t k = 0; k < n_k; k++) {
            const vec power = vanishing_powers(rule->factor * (load(work->cost + k * WIDTH + j) - lowest));
            store(work->weight + k * WIDTH + j, power);
            sum += power;
        }
        store(work->sum + j, load(counts + j) * inverses(sum));
    }
}

/* Normalizes the weights and adds the weighted costs to the loss. A single target's slopes replace the outputs; those of
   several are added up. */
ALWAYS void weigh(int absolute, int several, const Rule *rule, float *out, const float *target, int64_t width,
                  Work *work) {
    const int64_t n_d = rule->n_dims;
    for (int64_t j = 0; j < width; j += LANES) {
        const vec sum = load(work->sum + j), winner = load(work->winner + j);
        vec loss = load(work->loss + j);
        for (int64_t k = 0; k < rule->n_hypotheses; k++) {
            const vec weight = load(work->weight + k * WIDTH + j) * sum;
            store(work->weight + k * WIDTH + j, weight);
            loss += weight * load(work->cost + k * WIDTH + j);
            if (several)
                *(vec *)(work->labels + k * WIDTH + j) += (vec)((ivec)all_of(rule->part) & (winner == (float)k));
            for (int64_t d = 0; d < n_d; d++) {
                float *own = out + (k * n_d + d) * WIDTH + j;
                const vec slope = rule->share * slope_of(absolute, load(own) - load(target + d * WIDTH + j)) * weight;
                if (several)
                    *(vec *)(work->slopes + (k * n_d + d) * WIDTH + j) += slope;
                else
                    store(own, slope);
            }
        }
        store(work->loss + j, loss);
    }
}

/* The score loss of a block of rows; its gradient replaces the logits [n_hypotheses][WIDTH]. */
ALWAYS double scores_of(int several, const Rule *rule, float *logits, const float *counts, int64_t width, Work *work) {
    const int64_t n_k = rule->n_hypotheses;
    const float scale = rule->score_share / (float)n_k;
    double scores = 0;
    for (int64_t j = 0; j < width; j += LANES) {
        const vec count = load(counts + j), winner = load(work->winner + j);
        vec loss = {0}, product = all_of(1.0f);
        for (int64_t k = 0; k < n_k; k++) {
            const vec x = load(logits + k * WIDTH + j), power = vanishing_powers(-1.4426950408889634f * size_of(x));
            const vec label = several ? load(work->labels + k * WIDTH + j)
                                      : (vec)((ivec)all_of(1.0f) & (winner == (float)k));
            product *= 1.0f + power;
            loss += (vec)((ivec)x & ~(x < 0.0f)) - x * label;
            store(logits + k * WIDTH + j, scale * count * (pick(x < 0.0f, power, all_of(1.0f)) * inverses(1.0f + power) - label));
        }
        loss = count * (loss + logarithms(product));
        for (int i = 0; i < LANES; i++) scores += loss[i];
    }
    return scores * scale;
}

/* Losses of a block of rows, and their gradient written over the outputs [n_hypotheses * (n_dims + 1)][WIDTH]. */
ALWAYS double losses_of(int absolute, int several, const Rule *rule, float *out, const float *targets,
                        const float *counts, int64_t width, float *scratch) {
    const int64_t n_k = rule->n_hypotheses, n_values = n_k * rule->n_dims;
    float *const cost = scratch + 4 * WIDTH, *const weight = cost + n_k * WIDTH, *const labels = weight + n_k * WIDTH;
    Work work = {scratch, scratch + WIDTH, scratch + 2 * WIDTH, scratch + 3 * WIDTH,
                 cost, weight, labels, labels + n_k * WIDTH};
    if (several) memset(labels, 0, (size_t)((n_k + n_values) * WIDTH) * sizeof(float)); /* and the slopes, which follow */
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

/* Compiled separately for each cost and for one or several targets, so that the loops above have no branches. */
static double block_losses(int absolute, const Rule *rule, float *out, const float *targets, const float *counts,
                           int64_t width, float *scratch) {
    if (rule->n_targets > 1)
        return absolute ? losses_of(1, 1, rule, out, targets, counts, width, scratch)
                        : losses_of(0, 1, rule, out, targets, counts, width, scratch);
    return absolute ? losses_of(1, 0, rule, out, targets, counts, width, scratch)
                    : losses_of(0, 0, rule, out, targets, counts, width, scratch);
}

/* log2 of the factor that an excess cost of 1 applies to a weight: finite and negative for any positive temperature, else 0. */
static float exponent(float temperature) {
    if (!(temperature > 0)) return 0;
    return fminf(fmaxf(-1.4426950408889634f / temperature, -FLT_MAX), -FLT_MIN);
}
