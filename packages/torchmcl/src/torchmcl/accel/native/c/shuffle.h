/* Pseudo-random permutations: the order of hashes of the rows, as `torchmcl.fleet.data.shuffled_rows` defines it. No
   vectors: one version serves all processors. */

#include "native.h"

/* The mixing function of the SplitMix64 generator. */
static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t key_of(uint64_t stream, uint64_t row) {
    return mixed(stream + row * 0x9e3779b97f4a7c15u) >> 1 & 0x3fffffffffffffffu;
}

/* Numbers whose upper halves are in order, from `a` by way of `b` and back; equal ones keep their order. */
static void sort_upper_halves(uint64_t *a, uint64_t *b, int64_t n) {
    for (int shift = 32; shift < 64; shift += 8) {
        int64_t places[257] = {0};
        for (int64_t i = 0; i < n; i++) places[(a[i] >> shift & 255) + 1]++;
        for (int digit = 0; digit < 256; digit++) places[digit + 1] += places[digit];
        for (int64_t i = 0; i < n; i++) b[places[a[i] >> shift & 255]++] = a[i];
        uint64_t *const other = a;
        a = b, b = other;
    }
}

/* Sorted by the upper 32 bits of the 62, with the row below them; the few rows that share them by all bits. */
static void shuffle_one(const Shuffle *shuffle, int64_t order) {
    const int64_t n_rows = shuffle->n_rows, n = shuffle->lengths[order];
    const uint64_t stream = mixed(mixed((uint64_t)shuffle->seeds[order] + 1) + (uint64_t)shuffle->epoch);
    uint64_t *a = shuffle->scratch;
    int64_t *out = shuffle->orders + order * n_rows;
    for (int64_t row = 0; row < n; row++) a[row] = key_of(stream, (uint64_t)row) >> 30 << 32 | (uint64_t)row;
    sort_upper_halves(a, a + n_rows, n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = (int64_t)(a[i] & 0xffffffffu);
        int64_t place = i;
        for (; place && a[place - 1] >> 32 == a[i] >> 32; place--) {
            const uint64_t before = (uint64_t)out[place - 1];
            if (key_of(stream, before) <= key_of(stream, (uint64_t)row)) break;
            out[place] = out[place - 1];
        }
        out[place] = row;
    }
    for (int64_t row = n; row < n_rows; row++) out[row] = row; /* padding stays at the end */
}

static void shuffle_rows(const Shuffle *shuffle) {
    for (int64_t order = 0; order < shuffle->n_orders; order++) shuffle_one(shuffle, order);
}
