/* The points of lowest mean squared distance to a draw of a mixture on the line: dynamic programming over a few borders,
   then Newton's method for points that are the means of their cells. Included after normal.h, before line_sets.h. */

#define ROUNDS 12 /* at most */
#define EXACT_ROUNDS 30 /* at most; most rows need one */
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

/* Memory: costs [borders][borders], lowest costs [points][borders + 1], integrals, and the arrays of Newton's method. */
static int64_t line_points_memory(const Line *line) {
    const int64_t n = n_borders(line), k = line->n_columns;
    const int64_t choosing = are_many(line) ? 0 : n * n + (k + 1) * (n + 16);
    return choosing + 2 * n + (n + 1) * (int64_t)sizeof(Integrals) / 4 + 2 * 6 * (k + 1) +
           (k + 1) * (int64_t)sizeof(Integrals) / 4 + (n + 1) + 64;
}

typedef struct {
    float *cost, *best, *mass, *mean;
    Integrals *borders, *cells;
    double *points, *means, *diagonal, *right, *step;
    int64_t *at;
    int32_t *valleys;
} Quantizer;

static Quantizer quantizer_in(const Line *line, float *memory) {
    const int64_t n = n_borders(line), k = line->n_columns;
    Quantizer q;
    q.cost = memory, memory += are_many(line) ? 0 : n * n;
    q.best = memory, memory += are_many(line) ? 0 : (k + 1) * (n + 16);
    q.mass = memory, q.mean = memory + n, memory += 2 * n;
    q.borders = (Integrals *)(memory + (uintptr_t)memory / 4 % 2), memory = (float *)(q.borders + n + 1);
    q.cells = (Integrals *)memory, memory = (float *)(q.cells + k + 1);
    q.points = (double *)memory;
    q.means = q.points + k + 1, q.diagonal = q.means + k + 1, q.right = q.diagonal + k + 1, q.step = q.right + k + 1;
    q.at = (int64_t *)(q.step + k + 1);
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
        const float centre = (float)middle, inner = within > 0 ? (float)within : 0;
        const int64_t first = (i + 1) / LANES * LANES; /* the padding of the first vector is overwritten below */
        for (int64_t j = first; j < n; j += LANES) {
            vec mass = *(vec *)(q->mass + j), mean = *(vec *)(q->mean + j);
            const vec off = centre - mean, both = mass + weight, share = weight / both;
            *(vec *)(cost + j) = *(vec *)(cost + n + j) + inner + mass * share * off * off;
            *(vec *)(q->mean + j) = mean + share * off;
            *(vec *)(q->mass + j) = both;
        }
        for (int64_t j = 0; j < i; j++) cost[j] = INFINITY;
        for (int64_t j = i / LANES * LANES; j < i; j++) q->mass[j] = 1, q->mean[j] = 0;
        cost[i] = inner, q->mean[i] = centre, q->mass[i] = weight;
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

/* The best k of n groups of neighbors: q->at[p] is the last border of group p. */
static void choose_borders(Quantizer *q, int64_t n, int64_t k) {
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
    int64_t end = n;
    for (int64_t p = k; p > 0; p--) {
        const float *before = q->best + (p - 1) * width, *cost = q->cost + end - 1, wanted = q->best[p * width + end];
        q->at[p - 1] = end;
        int64_t i = p - 1;
        while (i + 1 < end && before[i] + cost[i * n] != wanted) i++;
        end = i;
    }
}

/* Mass and mean of each cell between the borders; a cell without mass keeps its point. */
static void set_means(const LineRow *row, Quantizer *q, int64_t k) {
    for (int64_t p = 0; p < k; p++) {
        const double *high = p + 1 < k ? q->cells[p].sum : row->sums + 3 * row->n_cells;
        const double mass = high[0] - (p ? q->cells[p - 1].sum[0] : 0), first = high[1] - (p ? q->cells[p - 1].sum[1] : 0);
        q->means[p] = mass > 1e-12 ? first / mass : q->points[p];
    }
}

/* A step of Newton's method towards points that are the means of their cells, into q->step. Returns the share of the step
   that keeps the order of the points: 1 near a minimum. Far from one, pivots are replaced so that the step leads downhill. */
static double newton(const LineRow *row, Quantizer *q, int64_t k) {
    double below_part = 0, share = 1;
    for (int64_t p = 0; p < k; p++) {
        const double from = p ? q->cells[p - 1].sum[0] : 0, to = p + 1 < k ? q->cells[p].sum[0] : row->sums[3 * row->n_cells];
        const double mass = to - from > 1e-12 ? to - from : 1e-12;
        const double low = p ? q->points[p - 1] + q->points[p] : 0, high = p + 1 < k ? q->points[p] + q->points[p + 1] : 0;
        const double left = p ? q->cells[p - 1].height * (q->means[p] - low / 2) / (2 * mass) : 0;
        const double right = p + 1 < k ? q->cells[p].height * (high / 2 - q->means[p]) / (2 * mass) : 0;
        double pivot = 1 - left - right - left * below_part;
        if (!(pivot > 0.02)) pivot = pivot < -0.1 ? -pivot : 0.1, share = 0.9;
        q->right[p] = below_part = right / pivot;
        q->step[p] = (q->means[p] - q->points[p] + (p ? left * q->step[p - 1] : 0)) / pivot;
    }
    for (int64_t p = k - 2; p >= 0; p--) q->step[p] += q->right[p] * q->step[p + 1];
    for (int64_t p = 0; p < k; p++) {
        const double room_left = p ? q->points[p] - q->points[p - 1] : INFINITY;
        const double room_right = p + 1 < k ? q->points[p + 1] - q->points[p] : INFINITY;
        const double room = room_left < room_right ? room_left : room_right;
        const double most = 0.4 * room / fabs(q->step[p]);
        if (!(most >= share)) share = most;
    }
    return share;
}

/* The integrals up to x without interpolation, with errors of 1e-10. Kernels far below are added first, without branches,
   and only those around x need the distribution function. */
static Integrals exactly_below(const LineRow *row, double x) {
    Integrals found = {{0, 0, 0}, 0};
    int32_t *near = row->alive, n_near = 0;
    for (int i = 0; i < row->n_kernels; i++) {
        const Kernel *own = row->kernels + i;
        const double z = (x - own->centre) * own->per_unit, mass = z < NORMAL_REACH ? 0 : own->share;
        near[n_near] = i, n_near += (z < NORMAL_REACH) & (z > -NORMAL_REACH);
        found.sum[0] += mass, found.sum[1] += mass * own->centre, found.sum[2] += mass * own->energy;
    }
    for (int j = 0; j < n_near; j++) {
        const Kernel *own = row->kernels + near[j];
        double bell;
        const double mass = own->share * normal_below((x - own->centre) * own->per_unit, &bell);
        const double reach = own->share * own->width * 0.3989422804014327 * bell;
        found.height += reach * own->per_unit * own->per_unit, found.sum[0] += mass;
        found.sum[1] += own->centre * mass - reach, found.sum[2] += own->energy * mass - (own->centre + x) * reach;
    }
    return found;
}

/* Replaces the cells between the points, and the integrals over the whole line, by exact ones. */
static void set_exact_cells(LineRow *row, Quantizer *q, int64_t k) {
    double *whole = row->sums + 3 * row->n_cells;
    whole[0] = whole[1] = whole[2] = 0;
    for (int i = 0; i < row->n_kernels; i++) {
        const Kernel *own = row->kernels + i;
        whole[0] += own->share, whole[1] += own->share * own->centre, whole[2] += own->share * own->energy;
    }
    for (int64_t p = 0; p + 1 < k; p++) q->cells[p] = exactly_below(row, (q->points[p] + q->points[p + 1]) / 2);
    set_means(row, q, k);
}

/* Moves points from the chosen borders until they are the means of their cells: first of the interpolated density, whose
   errors of 1e-4 a step of Newton's method with exact integrals takes away. */
static void settle(LineRow *row, Quantizer *q, int64_t k, double deviation) {
    for (int64_t p = 0; p + 1 < k; p++) q->cells[p] = q->borders[q->at[p]];
    for (int64_t p = 0; p < k; p++) q->points[p] = 0, q->at[p] = row->n_cells / 2;
    set_means(row, q, k);
    memcpy(q->points, q->means, (size_t)k * sizeof *q->points);
    for (int round = 0; round < ROUNDS; round++) {
        for (int64_t p = 0; p + 1 < k; p++) {
            if (p && q->at[p] < q->at[p - 1]) q->at[p] = q->at[p - 1];
            q->cells[p] = below_place(row, (q->points[p] + q->points[p + 1]) / 2, q->at + p);
        }
        set_means(row, q, k);
        if (round + 1 == ROUNDS) break;
        const int jumps = round > 0 && newton(row, q, k) >= 1;
        double furthest = 0;
        for (int64_t p = 0; p < k; p++) {
            const double moved = jumps ? q->points[p] + q->step[p] : q->means[p], by = fabs(moved - q->points[p]);
            furthest = by > furthest ? by : furthest;
            q->points[p] = moved;
        }
        if (furthest < 1e-6 * deviation) break;
    }
    for (int round = 0; round < EXACT_ROUNDS; round++) {
        set_exact_cells(row, q, k);
        const double share = newton(row, q, k);
        double furthest = 0;
        for (int64_t p = 0; p < k; p++) {
            q->step[p] = share > 0 ? share * q->step[p] : q->means[p] - q->points[p];
            furthest = fabs(q->step[p]) > furthest ? fabs(q->step[p]) : furthest;
        }
        const int last = round + 1 == EXACT_ROUNDS;
        if ((share >= 1 && furthest < 3e-4 * deviation) || furthest < 1e-8 * deviation || last) break;
        for (int64_t p = 0; p < k; p++) q->points[p] += q->step[p];
    }
    for (int64_t p = 0; p + 1 < k; p++) { /* the borders move so little that the density is constant */
        const double by = (q->step[p] + q->step[p + 1]) / 2, x = (q->points[p] + q->points[p + 1] + by) / 2;
        const double passed = q->cells[p].height * by;
        q->cells[p].sum[0] += passed, q->cells[p].sum[1] += passed * x, q->cells[p].sum[2] += passed * x * x;
    }
    for (int64_t p = 0; p < k; p++) q->points[p] += q->step[p];
    set_means(row, q, k);
}

static void write_points(const Line *line, const LineRow *row, const Quantizer *q, int64_t r) {
    const int64_t k = line->n_columns;
    const double *last = row->sums + 3 * row->n_cells;
    for (int64_t p = 0; p < k; p++) {
        double part[3];
        for (int i = 0; i < 3; i++)
            part[i] = (p + 1 < k ? q->cells[p].sum[i] : last[i]) - (p ? q->cells[p - 1].sum[i] : 0);
        const double mass = part[0] > 0 ? part[0] : 0, mean = q->means[p];
        const double variance = mass > 1e-12 ? part[2] / mass - mean * mean : 0;
        const double deviation = variance > 0 ? row->unit * sqrt(variance) : 0, least = 1e-3 * row->narrowest;
        line->first[r * k + p] = row->origin + row->unit * mean;
        line->second[r * k + p] = mass / last[0];
        line->third[r * k + p] = deviation > least ? deviation : least;
    }
}

static void line_points(const Line *line) {
    LineRow row;
    float *rest = line->scratch + line_memory(line, &row, line->scratch);
    Quantizer q = quantizer_in(line, rest);
    const int64_t n = n_borders(line), k = line->n_columns;
    for (int64_t r = 0; r < line->n_rows; r++) {
        if (!read_line(line, &row, r)) {
            for (int64_t i = r * k; i < (r + 1) * k; i++) line->first[i] = line->second[i] = line->third[i] = NAN;
            continue;
        }
        add_up(&row);
        const double *last = row.sums + 3 * row.n_cells, mean = last[1] / last[0];
        set_borders(&row, &q, n);
        if (are_many(line)) {
            for (int64_t p = 0; p < k; p++) q.at[p] = (p + 1) * n / k;
        } else {
            set_costs(&q, n);
            choose_borders(&q, n, k);
        }
        settle(&row, &q, k, sqrt(last[2] / last[0] - mean * mean));
        write_points(line, &row, &q, r);
    }
}
