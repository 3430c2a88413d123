/* Mixtures on the line without a share of the probability at each end, each kernel counted at its center. No row is
   sorted: only the outermost kernels are kept in order, which are few. */

#include "native.h"

/* Takes `amount` off the weights `kept` of the lowest kernels, or of the highest for a negative sign; of equal ones, off
   the outermost in the order of a row first. `order` is memory for n. */
static void take_off(const double *values, const double *weights, int64_t n, double sign, double amount, double *kept,
                     int64_t *order) {
    int64_t n_held = 0;
    double mass = 0, last = 0; /* of the held kernels, and the place of the innermost */
    for (int64_t j = 0; j < n; j++) {
        const int64_t i = sign > 0 ? j : n - 1 - j;
        const double place = sign * values[i];
        if (n_held && mass >= amount && place >= last) continue;
        int64_t to = n_held++;
        for (; to > 0 && sign * values[order[to - 1]] > place; to--) order[to] = order[to - 1];
        order[to] = i, mass += weights[i];
        while (n_held > 1 && mass - weights[order[n_held - 1]] >= amount) mass -= weights[order[--n_held]];
        last = sign * values[order[n_held - 1]];
    }
    double left = amount;
    for (int64_t j = 0; j < n_held && left > 0; j++) {
        const double own = weights[order[j]] < left ? weights[order[j]] : left;
        kept[order[j]] -= own, left -= own;
    }
}

static void trim_rows(const Trim *trim) {
    const int64_t n = trim->n_kernels;
    for (int64_t r = 0; r < trim->n_rows; r++) {
        const double *values = trim->values + r * n, *weights = trim->weights + r * n;
        double *kept = trim->kept + r * n, whole = 0, left = 0;
        for (int64_t i = 0; i < n; i++) kept[i] = weights[i], whole += weights[i];
        take_off(values, weights, n, -1, trim->share * whole, kept, trim->order);
        take_off(values, weights, n, 1, trim->share * whole, kept, trim->order);
        for (int64_t i = 0; i < n; i++) kept[i] = kept[i] > 0 ? kept[i] : 0, left += kept[i];
        const double part = 1 / left;
        for (int64_t i = 0; i < n; i++) kept[i] *= part;
    }
}
