/* The numbers held by the leaf of each tree that a row reaches. Gathers, not arithmetic: one version serves all processors. */

#include "native.h"

#define TOGETHER 8 /* rows that go down a tree at the same time, so that their memory accesses overlap */
#define LEVELS 4   /* between two tests whether all rows are at leaves */

/* Descends one tree. A leaf is its own child, so no test for leaves is needed at every node. */
static inline __attribute__((always_inline)) void descend(const Trees *trees, int64_t tree, int64_t first, int n_rows) {
    const Node *nodes = trees->nodes;
    int32_t at[TOGETHER];
    const float *row[TOGETHER];
    for (int i = 0; i < n_rows; i++) {
        at[i] = trees->roots[tree];
        row[i] = trees->rows + (first + i) * trees->n_columns;
    }
    int32_t moved = 1;
    for (int32_t level = trees->depths[tree]; level > 0 && moved; level -= LEVELS) {
        moved = 0;
        for (int step = 0; step < LEVELS; step++)
            for (int i = 0; i < n_rows; i++) {
                const Node node = nodes[at[i]];
                const int32_t next = node.child + (row[i][node.column] > node.threshold);
                if (step + 1 == LEVELS) moved |= next ^ at[i];
                at[i] = next;
            }
    }
    const int64_t n = trees->n_held;
    for (int i = 0; i < n_rows; i++) {
        double *to = trees->found + ((first + i) * trees->n_trees + tree) * n;
        for (int64_t h = 0; h < n; h++) to[h] = trees->held[at[i] * n + h];
    }
}

/* Tree by tree over a block of rows, so that one tree stays in the cache. */
static void find_leaves(const Trees *trees) {
    const int64_t block = 1024;
    for (int64_t start = 0; start < trees->n_rows; start += block) {
        const int64_t stop = start + block < trees->n_rows ? start + block : trees->n_rows;
        for (int64_t tree = 0; tree < trees->n_trees; tree++) {
            int64_t first = start;
            for (; first + TOGETHER <= stop; first += TOGETHER) descend(trees, tree, first, TOGETHER);
            for (; first < stop; first++) descend(trees, tree, first, 1);
        }
    }
}
