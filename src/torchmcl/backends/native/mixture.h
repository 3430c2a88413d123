/* The score of mixtures of normal distributions: minus the log-likelihood, plus a multiple of the continuous ranked
   probability score, and their gradient. Included by step.h, whose vectors and layout it shares: [values][WIDTH]. */

/* exp(-z^2 / 2) and erf(z / sqrt 2), with an absolute error of 2e-7 (Abramowitz and Stegun, 7.1.26). */
typedef struct { float bell, twice; } Normal;

ALWAYS Normal normal_at(float z) {
    const float size = fabsf(z), t = 1 / (1 + 0.23164189f * size);
    const float bell = power_of_two(-0.72134752f * z * z);
    const float rest = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float twice = 1 - rest * bell;
    return (Normal){bell, z < 0 ? -twice : twice};
}

#define PEAK 0.7978845608f /* twice the height of the standard normal density */

/* What a block of rows is computed in: each is [n_hypotheses][WIDTH], or [n_hypotheses * n_dims][WIDTH]. */
typedef struct {
    float *share, *log_share, *share_slope, *posterior;
    float *scale, *gate, *place_slope, *scale_slope;
    float *highest, *sum, *loss;
} Mixture;

static int64_t mixture_rows(int64_t n_k, int64_t n_d) { return 4 * n_k + 4 * n_k * n_d + 3; }

static Mixture mixture_in(float *scratch, int64_t n_k, int64_t n_d) {
    const int64_t one = n_k * WIDTH, all = n_k * n_d * WIDTH;
    float *wide = scratch + 4 * one, *rest = wide + 4 * all;
    return (Mixture){scratch, scratch + one, scratch + 2 * one, scratch + 3 * one,
                     wide, wide + all, wide + 2 * all, wide + 3 * all,
                     rest, rest + WIDTH, rest + 2 * WIDTH};
}

/* Shares are the softmax of the logits, scales softplus(raw) + min_scale. */
static void shares_and_scales(const Network *network, const float *logits, const float *raw, int64_t width, Mixture *m) {
    const int64_t n_k = network->n_hypotheses, n = n_k * network->n_dims;
    for (int64_t j = 0; j < width; j++) m->highest[j] = logits[j], m->sum[j] = 0;
    for (int64_t k = 1; k < n_k; k++)
        for (int64_t j = 0; j < width; j++) {
            const float x = logits[k * WIDTH + j], highest = m->highest[j];
            m->highest[j] = x > highest ? x : highest;
        }
    for (int64_t k = 0; k < n_k; k++)
        for (int64_t j = 0; j < width; j++) {
            const float below = logits[k * WIDTH + j] - m->highest[j], power = power_of_two(1.44269504f * below);
            m->share[k * WIDTH + j] = power;
            m->log_share[k * WIDTH + j] = below;
            m->sum[j] += power;
        }
    for (int64_t j = 0; j < width; j++) m->highest[j] = logf(m->sum[j]), m->sum[j] = 1 / m->sum[j];
    for (int64_t k = 0; k < n_k; k++)
        for (int64_t j = 0; j < width; j++) {
            m->share[k * WIDTH + j] *= m->sum[j];
            m->log_share[k * WIDTH + j] -= m->highest[j];
        }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            const float x = raw[i * WIDTH + j], power = power_of_two(-1.44269504f * fabsf(x));
            m->gate[i * WIDTH + j] = (x >= 0 ? 1.0f : power) / (1 + power);
            m->scale[i * WIDTH + j] = 1 + power;
        }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            const float x = raw[i * WIDTH + j];
            m->scale[i * WIDTH + j] = (x > 0 ? x : 0) + logf(m->scale[i * WIDTH + j]) + network->min_scale;
        }
}

/* Minus half the mean distance of two draws: `times` is its weight. */
static void add_spread(const Network *network, float times, const float *places, int64_t width, Mixture *m) {
    const int64_t n_k = network->n_hypotheses, n_d = network->n_dims;
    for (int64_t d = 0; d < n_d; d++)
        for (int64_t k = 0; k < n_k; k++) {
            const int64_t own = (k * n_d + d) * WIDTH;
            for (int64_t j = 0; j < width; j++) { /* two draws of one hypothesis */
                const float share = m->share[k * WIDTH + j], apart = 1.1283791671f * m->scale[own + j];
                m->loss[j] -= 0.5f * times * share * share * apart;
                m->share_slope[k * WIDTH + j] -= times * share * apart;
                m->scale_slope[own + j] -= 0.5f * 1.1283791671f * times * share * share;
            }
            for (int64_t i = 0; i < k; i++) {
                const int64_t other = (i * n_d + d) * WIDTH;
                for (int64_t j = 0; j < width; j++) {
                    const float a = m->scale[own + j], b = m->scale[other + j], both = sqrtf(a * a + b * b);
                    const float offset = places[own + j] - places[other + j];
                    const Normal at = normal_at(offset / both);
                    const float apart = offset * at.twice + PEAK * both * at.bell;
                    const float share = m->share[k * WIDTH + j], rest = m->share[i * WIDTH + j];
                    const float pair = times * share * rest, slope = pair * PEAK * at.bell / both;
                    m->loss[j] -= pair * apart;
                    m->share_slope[k * WIDTH + j] -= times * rest * apart;
                    m->share_slope[i * WIDTH + j] -= times * share * apart;
                    m->place_slope[own + j] -= pair * at.twice;
                    m->place_slope[other + j] += pair * at.twice;
                    m->scale_slope[own + j] -= slope * a;
                    m->scale_slope[other + j] -= slope * b;
                }
            }
        }
}

/* The mean distance of a draw to one target of each row, with weight `times`, and the log densities in `posterior`. */
static void add_distances(const Network *network, float times, const float *places, const float *target, int64_t width,
                          Mixture *m) {
    const int64_t n_k = network->n_hypotheses, n_d = network->n_dims;
    for (int64_t k = 0; k < n_k; k++) {
        float *log_density = m->posterior + k * WIDTH, *share = m->share + k * WIDTH;
        for (int64_t j = 0; j < width; j++) log_density[j] = m->log_share[k * WIDTH + j];
        for (int64_t d = 0; d < n_d; d++) {
            const int64_t own = (k * n_d + d) * WIDTH;
            for (int64_t j = 0; j < width; j++) {
                const float scale = m->scale[own + j], offset = target[d * WIDTH + j] - places[own + j];
                const float z = offset / scale;
                log_density[j] -= 0.5f * z * z + 0.9189385332f;
                if (times != 0) {
                    const Normal at = normal_at(z);
                    const float apart = offset * at.twice + PEAK * scale * at.bell;
                    m->loss[j] += times * share[j] * apart;
                    m->share_slope[k * WIDTH + j] += times * apart;
                    m->place_slope[own + j] -= times * share[j] * at.twice;
                    m->scale_slope[own + j] += times * share[j] * PEAK * at.bell;
                }
            }
            for (int64_t j = 0; j < width; j++) log_density[j] -= logf(m->scale[own + j]);
        }
    }
}

/* Minus the log-likelihood of one target of each row; the slopes of the logits are added to those in `slopes`. */
static void add_likelihood(const Network *network, const float *places, const float *target, float *slopes, int64_t width,
                           Mixture *m) {
    const int64_t n_k = network->n_hypotheses, n_d = network->n_dims;
    for (int64_t j = 0; j < width; j++) m->highest[j] = m->posterior[j], m->sum[j] = 0;
    for (int64_t k = 1; k < n_k; k++)
        for (int64_t j = 0; j < width; j++) {
            const float x = m->posterior[k * WIDTH + j], highest = m->highest[j];
            m->highest[j] = x > highest ? x : highest;
        }
    for (int64_t k = 0; k < n_k; k++)
        for (int64_t j = 0; j < width; j++) {
            const float power = power_of_two(1.44269504f * (m->posterior[k * WIDTH + j] - m->highest[j]));
            m->posterior[k * WIDTH + j] = power;
            m->sum[j] += power;
        }
    for (int64_t j = 0; j < width; j++) m->loss[j] -= m->highest[j] + logf(m->sum[j]);
    for (int64_t k = 0; k < n_k; k++) {
        for (int64_t j = 0; j < width; j++) {
            m->posterior[k * WIDTH + j] /= m->sum[j];
            slopes[k * WIDTH + j] += m->share[k * WIDTH + j] - m->posterior[k * WIDTH + j];
        }
        for (int64_t d = 0; d < n_d; d++) {
            const int64_t own = (k * n_d + d) * WIDTH;
            for (int64_t j = 0; j < width; j++) {
                const float scale = m->scale[own + j], z = (target[d * WIDTH + j] - places[own + j]) / scale;
                const float part = m->posterior[k * WIDTH + j] / scale;
                m->place_slope[own + j] -= part * z;
                m->scale_slope[own + j] += part * (1 - z * z);
            }
        }
    }
}

/* Losses of a block of rows, and their gradient written over the outputs: places, logits and raw scales. */
static double mixture_losses(const Network *network, float share, float *out, const float *targets, const float *counts,
                             int64_t width, float *scratch) {
    const int64_t n_k = network->n_hypotheses, n_d = network->n_dims, n_values = n_k * n_d, n_t = network->n_targets;
    float *logits = out + n_values * WIDTH, *raw = logits + n_k * WIDTH;
    Mixture m = mixture_in(scratch, n_k, n_d);
    shares_and_scales(network, logits, raw, width, &m);
    memset(m.share_slope, 0, (size_t)(n_k * WIDTH) * sizeof(float));
    memset(m.place_slope, 0, (size_t)(2 * n_values * WIDTH) * sizeof(float)); /* and those of the scales behind them */
    memset(logits, 0, (size_t)(n_k * WIDTH) * sizeof(float));
    for (int64_t j = 0; j < width; j++) m.loss[j] = 0;
    for (int64_t t = 0; t < n_t; t++) {
        const float *target = targets + t * n_d * WIDTH;
        add_distances(network, network->crps, out, target, width, &m);
        add_likelihood(network, out, target, logits, width, &m);
    }
    if (network->crps != 0) add_spread(network, network->crps * (float)n_t, out, width, &m);
    double all = 0;
    for (int64_t j = 0; j < width; j++) all += counts[j] * m.loss[j], m.sum[j] = 0;
    for (int64_t k = 0; k < n_k; k++)
        for (int64_t j = 0; j < width; j++) m.sum[j] += m.share[k * WIDTH + j] * m.share_slope[k * WIDTH + j];
    for (int64_t k = 0; k < n_k; k++)
        for (int64_t j = 0; j < width; j++) {
            const float own = m.share[k * WIDTH + j] * (m.share_slope[k * WIDTH + j] - m.sum[j]);
            logits[k * WIDTH + j] = share * counts[j] * (logits[k * WIDTH + j] + own);
        }
    for (int64_t i = 0; i < n_values; i++)
        for (int64_t j = 0; j < width; j++) {
            out[i * WIDTH + j] = share * counts[j] * m.place_slope[i * WIDTH + j];
            raw[i * WIDTH + j] = share * counts[j] * m.scale_slope[i * WIDTH + j] * m.gate[i * WIDTH + j];
        }
    return all * share;
}
