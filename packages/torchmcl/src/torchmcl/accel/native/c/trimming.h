/* Mixtures on the line without a share of the probability at each end, each kernel counted at its center. No row is
   sorted: the place where the share ends is bisected until a few kernels are left. */

#include "native.h"

#define FEW_LEFT 4
#define MOST_HALVINGS 64

typedef struct {
    double mass;
    int64_t n;
} Below;

/* Two numbers anywhere in memory, and as many comparisons: every processor has these. */
typedef double pair __attribute__((vector_size(16), aligned(8)));
typedef int64_t marks __attribute__((vector_size(16), aligned(8)));

static inline Below below_of(const double *values, const double *weights, int64_t n, double at) {
    pair mass[2] = {{0, 0}, {0, 0}};
    marks count = {0, 0};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int s = 0; s < 2; s++) { /* without branches, which would go either way */
            const marks less = *(const pair *)(values + i + 2 * s) < at;
            mass[s] += (pair)((marks) * (const pair *)(weights + i + 2 * s) & less), count -= less;
        }
    Below found = {(mass[0][0] + mass[0][1]) + (mass[1][0] + mass[1][1]), count[0] + count[1]};
    for (; i < n; i++) found.mass += values[i] < at ? weights[i] : 0, found.n += values[i] < at;
    return found;
}

/* Takes `amount` off the weights `kept` of the lowest kernels; equal ones in their order. `order` is memory for n. */
static void take_off(const double *values, const double *weights, int64_t n, double amount, double *kept, int64_t *order) {
    double low = values[0], high = values[0];
    for (int64_t i = 1; i < n; i++) low = values[i] < low ? values[i] : low, high = values[i] > high ? values[i] : high;
    const double highest = high;
    Below under = {0, 0}, upto = {0, n};
    for (int h = 0; h < MOST_HALVINGS && upto.n - under.n > FEW_LEFT; h++) {
        const double middle = low + (high - low) / 2;
        if (!(middle > low && middle < high)) break;
        const Below found = below_of(values, weights, n, middle);
        if (found.mass <= amount)
            low = middle, under = found;
        else
            high = middle, upto = found;
    }
    int64_t n_left = 0;
    for (int64_t i = 0; i < n; i++) {
        if (values[i] < low) kept[i] -= weights[i];
        if (values[i] < low || values[i] > high || (values[i] == high && high < highest)) continue;
        int64_t to = n_left++;
        for (; to > 0 && values[order[to - 1]] > values[i]; to--) order[to] = order[to - 1];
        order[to] = i;
    }
    double left = amount - under.mass;
    for (int64_t i = 0; i < n_left && left > 0; i++) {
        const double own = weights[order[i]] < left ? weights[order[i]] : left;
        kept[order[i]] -= own, left -= own;
    }
}

static void trim_rows(const Trim *trim) {
    const int64_t n = trim->n_kernels;
    double *values = trim->scratch, *weights = values + n, *turned = weights + n;
    int64_t *order = (int64_t *)(turned + n);
    for (int64_t r = 0; r < trim->n_rows; r++) {
        double *kept = trim->kept + r * n, whole = 0, left = 0;
        for (int64_t i = 0; i < n; i++) { /* the other way round */
            values[i] = -trim->values[(r + 1) * n - 1 - i];
            weights[i] = turned[i] = trim->weights[(r + 1) * n - 1 - i];
            whole += weights[i];
        }
        take_off(values, weights, n, trim->share * whole, turned, order);
        for (int64_t i = 0; i < n; i++) kept[i] = turned[n - 1 - i];
        take_off(trim->values + r * n, trim->weights + r * n, n, trim->share * whole, kept, order);
        for (int64_t i = 0; i < n; i++) kept[i] = kept[i] > 0 ? kept[i] : 0, left += kept[i];
        const double part = 1 / left;
        for (int64_t i = 0; i < n; i++) kept[i] *= part;
    }
}
