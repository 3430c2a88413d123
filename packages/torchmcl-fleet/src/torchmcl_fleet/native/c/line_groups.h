/* Groups of neighboring parts of a mixture on the line, from which its best points are found: dynamic programming over a few
   borders. Included after line.h, before line_points.h. */

#define STARTS 4 /* at most */
#define MUCH_WORSE 1.05f /* groups whose cost is higher do not lead to better points */
#define THIRD (1.0f / 3)

/* Borders to choose from: fewer would miss branches, more cost time. A multiple of all vectors. */
static int64_t n_borders(const Line *line) {
    const int64_t wanted = line->n_columns * 4 > 48 ? line->n_columns * 4 : 48;
    return (wanted + 15) / 16 * 16;
}

/* The time of dynamic programming grows with the cube of the number of points. The optimal density of this many points
   is close to the cube root of the density, as is that of the borders: every fourth border is used. */
static int are_many(const Line *line) { return line->n_columns > 64; }

/* Integrals of 1, y and y^2 from the left up to a position, and the density there. */
typedef struct {
    double sum[3];
    double height;
} Integrals;

/* Memory: costs [borders][borders], lowest costs from both sides [points][borders + 1], integrals, and the arrays of
   Newton's method. */
static int64_t line_points_memory(const Line *line) {
    const int64_t n = n_borders(line), k = line->n_columns;
    const int64_t choosing = are_many(line) ? 0 : n * n + 2 * (k + 1) * (n + 16);
    return choosing + 2 * n + (n + 1) * (int64_t)sizeof(Integrals) / 4 + 2 * (6 + STARTS) * (k + 1) +
           (k + 1) * (int64_t)sizeof(Integrals) / 4 + (n + 1) + 64;
}

typedef struct {
    float *cost, *best, *rest, *mass, *mean;
    Integrals *borders, *cells;
    double *points, *means, *diagonal, *right, *step;
    int64_t *starts; /* [STARTS][points + 1]: the last border of each group */
    int64_t *at;
    int32_t *valleys;
} Quantizer;

static Quantizer quantizer_in(const Line *line, float *memory) {
    const int64_t n = n_borders(line), k = line->n_columns;
    Quantizer q;
    q.cost = memory, memory += are_many(line) ? 0 : n * n;
    q.best = memory, memory += are_many(line) ? 0 : (k + 1) * (n + 16);
    q.rest = memory, memory += are_many(line) ? 0 : (k + 1) * (n + 16);
    q.mass = memory, q.mean = memory + n, memory += 2 * n;
    q.borders = (Integrals *)(memory + (uintptr_t)memory / 4 % 2), memory = (float *)(q.borders + n + 1);
    q.cells = (Integrals *)memory, memory = (float *)(q.cells + k + 1);
    q.points = (double *)memory;
    q.means = q.points + k + 1, q.diagonal = q.means + k + 1, q.right = q.diagonal + k + 1, q.step = q.right + k + 1;
    q.starts = (int64_t *)(q.step + k + 1);
    q.at = q.starts + STARTS * (k + 1);
    q.valleys = (int32_t *)(q.at + k + 1);
    return q;
}

/* The cube root, to within a few percent. */
ALWAYS float about_cube_root(float x) {
    union { float f; uint32_t u; } bits = {.f = x};
    bits.u = bits.u / 3 + 0x2a5137a0u;
    return bits.f;
}

/* The integrals up to each cell, in double precision: the variance of a narrow cell is the difference of large sums.
   The density of the best points is proportional to the cube root of the density, and so is that of the candidate borders. */
static void add_up(LineRow *row) {
    double s0 = 0, s1 = 0, s2 = 0;
    float spread = 0;
    for (int64_t i = 0; i < row->n_cells; i++) {
        const Cell *cell = row->cells + i;
        double *sum = row->sums + 3 * i;
        sum[0] = s0, sum[1] = s1, sum[2] = s2, row->spread[i] = spread;
        const float rise = cell->f1 - cell->f0;
        const float square = 3 * rise - 2 * cell->g0 - cell->g1, cube = cell->g0 + cell->g1 - 2 * rise;
        const double h = (double)cell->h, x = cell->x, mass = (double)cell->mass;
        const double first = h * h * (double)(0.5f * cell->f0 + THIRD * cell->g0 + 0.25f * square + 0.2f * cube);
        const double second = h * h * h * (double)(THIRD * cell->f0 + 0.25f * cell->g0 + 0.2f * square + 0.5f * THIRD * cube);
        s0 += mass, s1 += x * mass + first, s2 += x * (x * mass + 2 * first) + second;
        spread += about_cube_root(cell->mass * cell->h * cell->h);
    }
    double *sum = row->sums + 3 * row->n_cells;
    sum[0] = s0, sum[1] = s1, sum[2] = s2, row->spread[row->n_cells] = spread;
}

ALWAYS Integrals up_to(const LineRow *row, int64_t at, double u) {
    const Cell *cell = row->cells + at;
    const double *sum = row->sums + 3 * at;
    const double h = (double)cell->h, x = cell->x, f = (double)cell->f0, g = (double)cell->g0;
    const double rise = (double)cell->f1 - f, square = 3 * rise - 2 * g - (double)cell->g1;
    const double cube = g + (double)cell->g1 - 2 * rise;
    const double w = h * u, third = 1.0 / 3;
    const double mass = w * (f + u * (0.5 * g + u * (third * square + u * (0.25 * cube))));
    const double first = w * w * (0.5 * f + u * (third * g + u * (0.25 * square + u * (0.2 * cube))));
    const double second = w * w * w * (third * f + u * (0.25 * g + u * (0.2 * square + u * (0.5 * third * cube))));
    return (Integrals){{sum[0] + mass, sum[1] + x * mass + first, sum[2] + x * (x * mass + 2 * first) + second},
                   f + u * (g + u * (square + u * cube))};
}

/* The integrals up to x; the search for the cell starts at a guess. */
ALWAYS Integrals below_place(const LineRow *row, double x, int64_t *at) {
    int64_t i = *at;
    while (i + 1 < row->n_cells && row->cells[i + 1].x <= x) i++;
    while (i > 0 && row->cells[i].x > x) i--;
    *at = i;
    double u = (x - row->cells[i].x) / (double)row->cells[i].h;
    u = u < 0 ? 0 : u > 1 ? 1 : u; /* between two runs */
    Integrals found = up_to(row, i, u);
    if (x > row->cells[i].x + (double)row->cells[i].h) found.height = 0;
    return found;
}

/* Finds the lowest valley near each border. Each gap between parts has the width `jump`. */
static void find_valleys(const LineRow *row, Quantizer *q, int64_t n, float per_step, float jump) {
    for (int64_t b = 0; b <= n; b++) q->valleys[b] = 0;
    for (int64_t part = 0; part < row->n_parts; part++) {
        float before = 1; /* the rise of the density in the last cell */
        for (int64_t i = row->starts[part]; i < row->starts[part + 1]; i++) {
            const Cell *cell = row->cells + i;
            const float rise = cell->f1 - cell->f0;
            const int apart = i == row->starts[part], turns = before <= 0 && rise >= 0;
            before = rise;
            if (apart || turns) {
                const float place = row->spread[i] + jump * ((float)part - (apart ? 0.5f : 0));
                const int64_t b = (int64_t)(place * per_step + 0.5f);
                if (b < 1 || b >= n) continue;
                if (!q->valleys[b] || cell->f0 < row->cells[q->valleys[b]].f0) q->valleys[b] = (int32_t)i;
            }
        }
    }
}

/* Places borders evenly, each in the lowest valley nearby: a group should not contain parts of two branches. Each gap
   between parts has space for a border, so that a light branch between two gaps can be a group. */
static void set_borders(const LineRow *row, Quantizer *q, int64_t n) {
    const float parts = (float)row->n_parts, most = (float)n / (4 * parts), room = most < 1 ? most : 1;
    const float step = row->spread[row->n_cells] / ((float)n - room * (parts - 1)), jump = room * step;
    find_valleys(row, q, n, 1 / step, jump);
    int64_t at = 0, part = 0;
    float start = 0; /* of the cell */
    for (int64_t b = 0; b <= n; b++) {
        const float wanted = step * (float)b;
        while (at + 1 < row->n_cells) {
            const int64_t next = part + (at + 1 == row->starts[part + 1]);
            const float after = row->spread[at + 1] + jump * (float)next;
            if (after > wanted) break;
            at++, part = next, start = after;
        }
        const float width = row->spread[at + 1] - row->spread[at];
        const float u = width > 0 ? (wanted - start) / width : 0;
        if (b == n)
            q->borders[b] = up_to(row, row->n_cells - 1, 1);
        else if (q->valleys[b])
            q->borders[b] = up_to(row, q->valleys[b], 0);
        else
            q->borders[b] = up_to(row, at, u < 0 ? 0 : u > 1 ? 1 : (double)u);
    }
}

/* cost[i][j]: the cost of one point for groups i to j. Groups are joined one by one, with nonnegative terms only: in
   differences of sums, narrow branches far from each other would lose all digits. */
static void set_costs(Quantizer *q, int64_t n) {
    for (int64_t i = n - 1; i >= 0; i--) {
        float *cost = q->cost + i * n;
        const double *from = q->borders[i].sum, *to = q->borders[i + 1].sum, own = to[0] - from[0];
        const float weight = own > 1e-30 ? (float)own : 1e-30f;
        const double middle = own > 1e-30 ? (to[1] - from[1]) / own : i + 1 < n ? (double)q->mean[i + 1] : 0;
        const double within = to[2] - from[2] - own * middle * middle;
        const float center = (float)middle, inner = within > 0 ? (float)within : 0;
        const int64_t first = (i + 1) / LANES * LANES; /* the padding of the first vector is overwritten below */
        for (int64_t j = first; j < n; j += LANES) {
            vec mass = *(vec *)(q->mass + j), mean = *(vec *)(q->mean + j);
            const vec off = center - mean, both = mass + weight, share = weight / both;
            *(vec *)(cost + j) = *(vec *)(cost + n + j) + inner + mass * share * off * off;
            *(vec *)(q->mean + j) = mean + share * off;
            *(vec *)(q->mass + j) = both;
        }
        for (int64_t j = 0; j < i; j++) cost[j] = INFINITY;
        for (int64_t j = i / LANES * LANES; j < i; j++) q->mass[j] = 1, q->mean[j] = 0;
        cost[i] = inner, q->mean[i] = center, q->mass[i] = weight;
    }
}

ALWAYS vec lower(vec a, vec b) {
    const ivec less = a < b;
    return (vec)(((ivec)a & less) | ((ivec)b & ~less));
}

/* The lowest costs with one more group that ends at j, ..., j + LANES - 1. Four independent chains run in parallel. */
ALWAYS vec lowest_costs(const float *before, const float *cost, int64_t n, int64_t j) {
    vec low[4];
    for (int c = 0; c < 4; c++) low[c] = (vec){0} + INFINITY;
    for (int64_t i = 0; i < j + LANES; i += 4)
        for (int c = 0; c < 4; c++) low[c] = lower(before[i + c] + *(const vec *)(cost + (i + c) * n + j), low[c]);
    return lower(lower(low[0], low[1]), lower(low[2], low[3]));
}

/* The lowest costs of p groups of neighbors that end before border i, q->best, and that begin there, q->rest. */
static void add_groups(Quantizer *q, int64_t n, int64_t k) {
    const int64_t width = n + 16;
    for (int64_t i = 0; i < width; i++) q->best[i] = i ? INFINITY : 0;
    for (int64_t p = 1; p <= k; p++) q->best[p * width] = INFINITY; /* no group is empty */
    memcpy(q->best + width + 1, q->cost, (size_t)n * sizeof(float));
    for (int64_t p = 2; p <= k; p++) {
        float *now = q->best + p * width;
        for (int64_t j = p < k ? 0 : n - LANES; j < n; j += LANES) {
            const vec low = lowest_costs(now - width, q->cost, n, j);
            memcpy(now + j + 1, &low, sizeof low);
        }
    }
    for (int64_t p = 1; p < k; p++) {
        const float *after = q->rest + (p - 1) * width + 1;
        float *now = q->rest + p * width;
        for (int64_t i = 0; i < n; i++) {
            const float *cost = q->cost + i * n;
            if (p == 1) {
                now[i] = cost[n - 1];
                continue;
            }
            vec low = (vec){0} + INFINITY;
            for (int64_t j = i / LANES * LANES; j < n; j += LANES)
                low = lower(*(const vec *)(cost + j) + (vec) * (const loose *)(after + j), low);
            now[i] = low[0];
            for (int l = 1; l < LANES; l++) now[i] = low[l] < now[i] ? low[l] : now[i];
        }
        for (int64_t i = n; i < width; i++) now[i] = INFINITY;
    }
}

/* The best groups of which p end before border i: at[p] is the last border of group p. */
static void trace(const Quantizer *q, int64_t n, int64_t k, int64_t p, int64_t i, int64_t *at) {
    const int64_t width = n + 16;
    for (int64_t left = p, end = i; left > 0; left--) {
        const float *before = q->best + (left - 1) * width, *cost = q->cost + end - 1, wanted = q->best[left * width + end];
        at[left - 1] = end;
        int64_t from = left - 1;
        while (from + 1 < end && before[from] + cost[from * n] != wanted) from++;
        end = from;
    }
    for (int64_t left = k - p, start = i; left > 1; left--) {
        const float *after = q->rest + (left - 1) * width + 1, *cost = q->cost + start * n, wanted = q->rest[left * width + start];
        int64_t last = start;
        while (last + 1 < n && cost[last] + after[last] != wanted) last++;
        start = at[k - left] = last + 1;
    }
    at[k - 1] = n;
}

/* The best groups, and others that are locally best, none of which is much worse: each has one border that is lower in
   cost than its neighbors, with all other borders chosen for it. Returns their number. */
static int choose_borders(Quantizer *q, int64_t n, int64_t k) {
    const int64_t width = n + 16;
    add_groups(q, n, k);
    trace(q, n, k, k, n, q->starts);
    const float least = q->best[k * width + n];
    int n_starts = 1;
    while (n_starts < STARTS) {
        float low = MUCH_WORSE * least;
        int64_t best_p = 0, best_i = 0;
        for (int64_t p = 1; p < k; p++) {
            const float *below = q->best + p * width, *above = q->rest + (k - p) * width;
            for (int64_t i = p; i <= n - (k - p); i++) {
                const float own = below[i] + above[i];
                if (!(own < low) || own > below[i - 1] + above[i - 1] || !(own < below[i + 1] + above[i + 1])) continue;
                int known = 0;
                for (int s = 0; s < n_starts; s++) known |= q->starts[s * (k + 1) + p - 1] == i;
                if (!known) low = own, best_p = p, best_i = i;
            }
        }
        if (!best_p) break;
        trace(q, n, k, best_p, best_i, q->starts + n_starts++ * (k + 1));
    }
    return n_starts;
}
