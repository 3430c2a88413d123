/* The leaf of each tree that a row reaches. Gathers, not arithmetic: one version serves all processors. */

#include "native.h"

#define TOGETHER 8 /* rows that go down a tree at the same time, so that their memory accesses overlap */

/* Descends one tree. A leaf is its own child, so no test for leaves is needed. */
static void descend(const Trees *trees, int64_t tree, int64_t first, int64_t n_rows) {
    const Node *nodes = trees->nodes;
    int32_t at[TOGETHER];
    const float *row[TOGETHER];
    for (int64_t i = 0; i < n_rows; i++) {
        at[i] = trees->roots[tree];
        row[i] = trees->rows + (first + i) * trees->n_columns;
    }
    for (int32_t level = trees->depths[tree]; level > 0; level--)
        for (int64_t i = 0; i < n_rows; i++) {
            const Node node = nodes[at[i]];
            at[i] = node.child + (row[i][node.column] > node.threshold);
        }
    for (int64_t i = 0; i < n_rows; i++) trees->leaves[(first + i) * trees->n_trees + tree] = at[i];
}

/* Tree by tree over a block of rows, so that one tree stays in the cache. */
static void find_leaves(const Trees *trees) {
    const int64_t block = 1024;
    for (int64_t start = 0; start < trees->n_rows; start += block) {
        const int64_t stop = start + block < trees->n_rows ? start + block : trees->n_rows;
        for (int64_t tree = 0; tree < trees->n_trees; tree++)
            for (int64_t first = start; first < stop; first += TOGETHER)
                descend(trees, tree, first, stop - first < TOGETHER ? stop - first : TOGETHER);
    }
}
