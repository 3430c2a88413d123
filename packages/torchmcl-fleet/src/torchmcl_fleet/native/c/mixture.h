/* The score of mixtures of normal distributions: minus the log-likelihood, plus a multiple of the continuous ranked
   probability score, and their gradient. Included by step.h, whose vectors and layout it shares: [values][WIDTH]. Each
   vector of rows is processed completely before the next one. */

#define PEAK 0.7978845608f  /* twice the height of the standard normal density */
#define APART 1.1283791671f /* mean distance of two draws from it */
#define TAIL 0.23164189f
#define TWO 2

/* exp(-z^2 / 2) and erf(z / sqrt 2), with an absolute error of 2e-7 (Abramowitz and Stegun, 7.1.26). */
typedef struct { vec bell, twice; } Normal;

/* `t` is 1 / (1 + TAIL |z|), which some callers have already computed. */
ALWAYS Normal normal_at(vec z, vec t) {
    const vec bell = vanishing_powers(-0.72134752f * z * z);
    vec rest = t * 1.061405429f - 1.453152027f;
    rest = rest * t + 1.421413741f;
    rest = rest * t - 0.284496736f;
    rest = rest * t + 0.254829592f;
    const vec twice = 1.0f - rest * t * bell;
    return (Normal){bell, (vec)((ivec)twice | ((ivec)z & (int)0x80000000))};
}

/* Temporary arrays for the rows of a vector: each is [n_hypotheses][WIDTH], or [n_hypotheses * n_dims][WIDTH]. */
typedef struct {
    int64_t n_k, n_d;
    float *share, *log_share, *share_slope, *posterior;
    float *scale, *inverse, *log_scale, *gate, *z, *place_slope, *scale_slope;
} Mixture;

static int64_t mixture_rows(int64_t n_k, int64_t n_d) { return 4 * n_k + 7 * n_k * n_d; }

static Mixture mixture_in(float *scratch, int64_t n_k, int64_t n_d) {
    const int64_t one = n_k * WIDTH, all = n_k * n_d * WIDTH;
    float *wide = scratch + 4 * one;
    return (Mixture){n_k, n_d, scratch, scratch + one, scratch + 2 * one, scratch + 3 * one,
                     wide, wide + all, wide + 2 * all, wide + 3 * all, wide + 4 * all, wide + 5 * all, wide + 6 * all};
}

ALWAYS void add_to(float *to, vec x) { store(to, load(to) + x); }

/* Shares are the softmax of the logits, scales softplus(raw) + min_scale. */
ALWAYS void shares_and_scales(const Mixture *m, const float *logits, const float *raw, float min_scale, int64_t j) {
    vec highest = load(logits + j), sum = {0};
    for (int64_t k = 1; k < m->n_k; k++) highest = larger(load(logits + k * WIDTH + j), highest);
    for (int64_t i = j; i < m->n_k * WIDTH; i += WIDTH) {
        const vec below = load(logits + i) - highest, power = vanishing_powers(1.44269504f * below);
        store(m->share + i, power), store(m->log_share + i, below), store(m->share_slope + i, (vec){0});
        sum += power;
    }
    const vec part = inverses(sum), log_sum = logarithms(sum);
    for (int64_t i = j; i < m->n_k * WIDTH; i += WIDTH) {
        store(m->share + i, load(m->share + i) * part);
        store(m->log_share + i, load(m->log_share + i) - log_sum);
    }
    for (int64_t i = j; i < m->n_k * m->n_d * WIDTH; i += WIDTH) {
        const vec x = load(raw + i), power = vanishing_powers(-1.44269504f * size_of(x)), most = 1.0f + power;
        const vec inverse = inverses(most), lost = (power - (most - 1.0f)) * inverse; /* the rounding error of 1 + power */
        const vec scale = (vec)((ivec)x & ~(x < 0.0f)) + (logarithms(most) + lost) + min_scale;
        store(m->gate + i, pick(x < 0.0f, power, all_of(1.0f)) * inverse);
        store(m->scale + i, scale), store(m->inverse + i, inverses(scale)), store(m->log_scale + i, logarithms(scale));
        store(m->place_slope + i, (vec){0}), store(m->scale_slope + i, (vec){0});
    }
}

/* The mean distance of two draws of different hypotheses, and its derivatives by the offset and by the joint deviation. */
typedef struct { vec apart, twice, slope; } Pair;

ALWAYS Pair pair_at(vec a, vec b, vec offset) {
    const vec both = roots(a * a + b * b), wider = both + TAIL * size_of(offset), parts = inverses(both * wider);
    const vec inverse = parts * wider; /* 1 / both, and both / wider: one division for two */
    const Normal normal = normal_at(offset * inverse, parts * both * both);
    return (Pair){offset * normal.twice + PEAK * both * normal.bell, normal.twice, PEAK * normal.bell * inverse};
}

/* Adds minus half the mean distance of two draws, with weight `times`, to the losses of TWO vectors. A pair is a long chain
   of dependent operations; processing two pairs at once fills the pipeline better. */
ALWAYS void add_spread(const Mixture *m, float times, const float *places, int64_t j, vec *loss) {
    for (int64_t d = 0; d < m->n_d; d++)
        for (int64_t k = 0; k < m->n_k; k++) {
            const int64_t own = (k * m->n_d + d) * WIDTH + j;
            vec share[TWO], to_share[TWO], to_place[TWO], to_scale[TWO];
            for (int h = 0; h < TWO; h++) { /* two draws of one hypothesis, then those of two */
                const vec alone = load(m->share + k * WIDTH + j + h * LANES);
                share[h] = times * alone, to_share[h] = APART * alone * load(m->scale + own + h * LANES);
                to_place[h] = (vec){0}, to_scale[h] = 0.5f * APART * alone;
                loss[h] -= 0.5f * share[h] * to_share[h];
            }
            for (int64_t i = 0; i < k; i++) {
                const int64_t other = (i * m->n_d + d) * WIDTH + j;
                vec a[TWO], b[TWO], offset[TWO];
                Pair pair[TWO];
                for (int h = 0; h < TWO; h++) {
                    a[h] = load(m->scale + own + h * LANES), b[h] = load(m->scale + other + h * LANES);
                    offset[h] = load(places + own + h * LANES) - load(places + other + h * LANES);
                }
                for (int h = 0; h < TWO; h++) pair[h] = pair_at(a[h], b[h], offset[h]);
                for (int h = 0; h < TWO; h++) {
                    const vec rest = load(m->share + i * WIDTH + j + h * LANES), both = share[h] * rest;
                    to_share[h] += rest * pair[h].apart, to_place[h] += rest * pair[h].twice;
                    to_scale[h] += rest * pair[h].slope * a[h], loss[h] -= both * pair[h].apart;
                    add_to(m->share_slope + i * WIDTH + j + h * LANES, -(share[h] * pair[h].apart));
                    add_to(m->place_slope + other + h * LANES, both * pair[h].twice);
                    add_to(m->scale_slope + other + h * LANES, -(both * pair[h].slope * b[h]));
                }
            }
            for (int h = 0; h < TWO; h++) {
                add_to(m->share_slope + k * WIDTH + j + h * LANES, -(times * to_share[h]));
                add_to(m->place_slope + own + h * LANES, -(share[h] * to_place[h]));
                add_to(m->scale_slope + own + h * LANES, -(share[h] * to_scale[h]));
            }
        }
}

/* The mean distance of a draw to one target, with weight `times`, and the log densities in `posterior`; returns the loss. */
ALWAYS vec add_distances(const Mixture *m, float times, const float *places, const float *target, int64_t j) {
    vec loss = {0};
    for (int64_t k = 0; k < m->n_k; k++) {
        const vec share = times * load(m->share + k * WIDTH + j);
        vec log_density = load(m->log_share + k * WIDTH + j), to_share = {0};
        for (int64_t d = 0; d < m->n_d; d++) {
            const int64_t own = (k * m->n_d + d) * WIDTH + j;
            const vec offset = load(target + d * WIDTH + j) - load(places + own), z = offset * load(m->inverse + own);
            store(m->z + own, z);
            log_density -= 0.5f * z * z + 0.9189385332f + load(m->log_scale + own);
            if (times != 0) {
                const Normal normal = normal_at(z, inverses(1.0f + TAIL * size_of(z)));
                to_share += offset * normal.twice + PEAK * load(m->scale + own) * normal.bell;
                add_to(m->place_slope + own, -(share * normal.twice));
                add_to(m->scale_slope + own, share * PEAK * normal.bell);
            }
        }
        loss += share * to_share;
        add_to(m->share_slope + k * WIDTH + j, times * to_share);
        store(m->posterior + k * WIDTH + j, log_density);
    }
    return loss;
}

/* The log-likelihood of that target; the slopes of the logits are added to those in `slopes`. */
ALWAYS vec add_likelihood(const Mixture *m, float *slopes, int64_t j) {
    vec highest = load(m->posterior + j), sum = {0};
    for (int64_t k = 1; k < m->n_k; k++) highest = larger(load(m->posterior + k * WIDTH + j), highest);
    for (int64_t i = j; i < m->n_k * WIDTH; i += WIDTH) {
        const vec power = vanishing_powers(1.44269504f * (load(m->posterior + i) - highest));
        store(m->posterior + i, power);
        sum += power;
    }
    const vec part = inverses(sum);
    for (int64_t k = 0; k < m->n_k; k++) {
        const vec posterior = load(m->posterior + k * WIDTH + j) * part;
        add_to(slopes + k * WIDTH + j, load(m->share + k * WIDTH + j) - posterior);
        for (int64_t d = 0; d < m->n_d; d++) {
            const int64_t own = (k * m->n_d + d) * WIDTH + j;
            const vec z = load(m->z + own), slope = posterior * load(m->inverse + own);
            add_to(m->place_slope + own, -(slope * z));
            add_to(m->scale_slope + own, slope * (1.0f - z * z));
        }
    }
    return highest + logarithms(sum);
}

/* The gradient with respect to the outputs, times `share`. */
ALWAYS void write_slopes(const Mixture *m, vec share, float *out, float *logits, float *raw, int64_t j) {
    vec sum = {0};
    for (int64_t i = j; i < m->n_k * WIDTH; i += WIDTH) sum += load(m->share + i) * load(m->share_slope + i);
    for (int64_t i = j; i < m->n_k * WIDTH; i += WIDTH)
        store(logits + i, share * (load(logits + i) + load(m->share + i) * (load(m->share_slope + i) - sum)));
    for (int64_t i = j; i < m->n_k * m->n_d * WIDTH; i += WIDTH) {
        store(out + i, share * load(m->place_slope + i));
        store(raw + i, share * load(m->scale_slope + i) * load(m->gate + i));
    }
}

/* Losses of a block of rows, and their gradient written over the outputs: locations, logits and raw scales. */
static double mixture_losses(const Network *network, float share, float *out, const float *targets, const float *counts,
                             int64_t width, float *scratch) {
    const int64_t n_k = network->n_hypotheses, n_values = n_k * network->n_dims, n_t = network->n_targets;
    float *logits = out + n_values * WIDTH, *raw = logits + n_k * WIDTH;
    const Mixture m = mixture_in(scratch, n_k, network->n_dims);
    double all = 0;
    for (int64_t j = 0; j < width; j += TWO * LANES) {
        vec loss[TWO] = {{0}};
        for (int h = 0; h < TWO; h++) shares_and_scales(&m, logits, raw, network->min_scale, j + h * LANES);
        for (int64_t i = 0; i < n_k * WIDTH; i += WIDTH)
            for (int h = 0; h < TWO; h++) store(logits + i + j + h * LANES, (vec){0});
        for (int64_t t = 0; t < n_t; t++)
            for (int h = 0; h < TWO; h++) {
                const float *target = targets + t * network->n_dims * WIDTH;
                loss[h] += add_distances(&m, network->crps, out, target, j + h * LANES);
                loss[h] -= add_likelihood(&m, logits, j + h * LANES);
            }
        if (network->crps != 0) add_spread(&m, network->crps * (float)n_t, out, j, loss);
        for (int h = 0; h < TWO; h++) {
            all += sum_of(load(counts + j + h * LANES) * loss[h]);
            write_slopes(&m, share * load(counts + j + h * LANES), out, logits, raw, j + h * LANES);
        }
    }
    return all * share;
}
