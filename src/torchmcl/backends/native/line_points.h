/* The points of lowest mean squared distance to a draw of a mixture on the line: dynamic programming over a few borders,
   then Newton's method for points that are the means of their cells. Included after line.h, before line_sets.h. */

#define ROUNDS 12 /* at most */

/* Borders to choose from: fewer would miss branches, more cost time. A multiple of all vectors. */
static int64_t n_borders(const Line *line) {
    const int64_t wanted = line->n_columns * 4 > 32 ? line->n_columns * 4 : 32;
    return (wanted + 15) / 16 * 16;
}

/* Integrals of 1, y and y^2 from the left up to a place, and the density there. */
typedef struct {
    double sum[3];
    double height;
} Below;

/* Memory: costs [borders][borders], lowest costs [points][borders + 1], integrals, and what Newton's method needs. */
static int64_t line_points_memory(const Line *line) {
    const int64_t n = n_borders(line), k = line->n_columns;
    return n * n + (k + 1) * (n + 16) + 2 * n + (n + 1) * (int64_t)sizeof(Below) / 4 + 2 * 6 * (k + 1) +
           (k + 1) * (int64_t)sizeof(Below) / 4 + (n + 1) + 64;
}

typedef struct {
    float *cost, *best, *mass, *mean;
    Below *borders, *cells;
    double *points, *means, *diagonal, *right, *step;
    int64_t *at;
    int32_t *valleys;
} Quantizer;

static Quantizer quantizer_in(const Line *line, float *memory) {
    const int64_t n = n_borders(line), k = line->n_columns;
    Quantizer q;
    q.cost = memory, memory += n * n;
    q.best = memory, memory += (k + 1) * (n + 16);
    q.mass = memory, q.mean = memory + n, memory += 2 * n;
    q.borders = (Below *)(memory + (uintptr_t)memory / 4 % 2), memory = (float *)(q.borders + n + 1);
    q.cells = (Below *)memory, memory = (float *)(q.cells + k + 1);
    q.points = (double *)memory;
    q.means = q.points + k + 1, q.diagonal = q.means + k + 1, q.right = q.diagonal + k + 1, q.step = q.right + k + 1;
    q.at = (int64_t *)(q.step + k + 1);
    q.valleys = (int32_t *)(q.at + k + 1);
    return q;
}

/* About the cube root, to a few percent. */
ALWAYS float about_cube_root(float x) {
    union { float f; uint32_t u; } bits = {.f = x};
    bits.u = bits.u / 3 + 0x2a5137a0u;
    return bits.f;
}

/* The integrals up to each cell, in double precision: the variance of a narrow cell is the difference of large sums.
   The best points lie as densely as the cube root of the density, and so do the borders to choose from. */
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
        const double first = h * h * (double)(cell->f0 / 2 + cell->g0 / 3 + square / 4 + cube / 5);
        const double second = h * h * h * (double)(cell->f0 / 3 + cell->g0 / 4 + square / 5 + cube / 6);
        s0 += mass, s1 += x * mass + first, s2 += x * (x * mass + 2 * first) + second;
        spread += about_cube_root(cell->mass * cell->h * cell->h);
    }
    double *sum = row->sums + 3 * row->n_cells;
    sum[0] = s0, sum[1] = s1, sum[2] = s2, row->spread[row->n_cells] = spread;
}

ALWAYS Below below(const LineRow *row, int64_t at, double u) {
    const Cell *cell = row->cells + at;
    const double *sum = row->sums + 3 * at;
    const double h = (double)cell->h, x = cell->x, f = (double)cell->f0, g = (double)cell->g0;
    const double rise = (double)cell->f1 - f, square = 3 * rise - 2 * g - (double)cell->g1;
    const double cube = g + (double)cell->g1 - 2 * rise;
    const double mass = h * u * (f + u * (g / 2 + u * (square / 3 + u * (cube / 4))));
    const double first = h * h * u * u * (f / 2 + u * (g / 3 + u * (square / 4 + u * (cube / 5))));
    const double second = h * h * h * u * u * u * (f / 3 + u * (g / 4 + u * (square / 5 + u * (cube / 6))));
    return (Below){{sum[0] + mass, sum[1] + x * mass + first, sum[2] + x * (x * mass + 2 * first) + second},
                   f + u * (g + u * (square + u * cube))};
}

/* The integrals up to x, from a guess of the cell that is put right. */
ALWAYS Below below_place(const LineRow *row, double x, int64_t *at) {
    int64_t i = *at;
    while (i + 1 < row->n_cells && row->cells[i + 1].x <= x) i++;
    while (i > 0 && row->cells[i].x > x) i--;
    *at = i;
    double u = (x - row->cells[i].x) / (double)row->cells[i].h;
    u = u < 0 ? 0 : u > 1 ? 1 : u; /* between two runs */
    Below found = below(row, i, u);
    if (x > row->cells[i].x + (double)row->cells[i].h) found.height = 0;
    return found;
}

/* Whether the density turns upwards where a cell begins: a valley, or the place between two runs. */
ALWAYS int is_valley(const Cell *cell) {
    const Cell *last = cell - 1;
    return (last->f1 <= last->f0 && cell->f0 <= cell->f1) || cell->x > last->x + 1.001 * (double)last->h;
}

/* Places borders evenly, each in the lowest valley nearby: a group with a part of two branches would be a bad one. */
static void set_borders(const LineRow *row, Quantizer *q, int64_t n) {
    const float step = row->spread[row->n_cells] / (float)n, per_step = 1 / step;
    for (int64_t b = 0; b <= n; b++) q->valleys[b] = 0;
    for (int64_t i = 1; i < row->n_cells; i++) {
        if (!is_valley(row->cells + i)) continue;
        const int64_t b = (int64_t)(row->spread[i] * per_step + 0.5f);
        if (b > 0 && b < n && (!q->valleys[b] || row->cells[i].f0 < row->cells[q->valleys[b]].f0))
            q->valleys[b] = (int32_t)i;
    }
    int64_t at = 0;
    for (int64_t b = 0; b <= n; b++) {
        const float wanted = step * (float)b;
        while (at + 1 < row->n_cells && row->spread[at + 1] <= wanted) at++;
        const float width = row->spread[at + 1] - row->spread[at];
        const float u = width > 0 ? (wanted - row->spread[at]) / width : 0;
        if (b == n)
            q->borders[b] = below(row, row->n_cells - 1, 1);
        else if (q->valleys[b])
            q->borders[b] = below(row, q->valleys[b], 0);
        else
            q->borders[b] = below(row, at, u < 0 ? 0 : u > 1 ? 1 : (double)u);
    }
}

/* cost[j][i]: of one point for groups i to j. Groups are joined one by one, in terms that are never negative: narrow
   branches far from each other would be lost in differences of sums. */
static void set_costs(Quantizer *q, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        float *cost = q->cost + j * n;
        const double *from = q->borders[j].sum, *to = q->borders[j + 1].sum, own = to[0] - from[0];
        const float weight = own > 1e-30 ? (float)own : 1e-30f;
        const double middle = own > 1e-30 ? (to[1] - from[1]) / own : j ? (double)q->mean[j - 1] : 0;
        const double within = to[2] - from[2] - own * middle * middle;
        const float centre = (float)middle, inner = within > 0 ? (float)within : 0;
        const float *last = cost - n;
        for (int64_t i = 0; i < j; i++) {
            const float off = centre - q->mean[i], share = weight / (q->mass[i] + weight);
            cost[i] = last[i] + inner + q->mass[i] * share * off * off;
            q->mean[i] += share * off;
            q->mass[i] += weight;
        }
        cost[j] = inner, q->mean[j] = centre, q->mass[j] = weight;
        for (int64_t i = j + 1; i < n; i++) cost[i] = INFINITY;
    }
}

ALWAYS float lowest_sum(const float *a, const float *b, int64_t n) {
    vec low = (vec){0} + INFINITY;
    for (int64_t i = 0; i < n; i += LANES) {
        vec x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        const vec sum = x + y;
        const ivec less = sum < low;
        low = (vec)(((ivec)sum & less) | ((ivec)low & ~less));
    }
    float found = low[0];
    for (int i = 1; i < LANES; i++) found = low[i] < found ? low[i] : found;
    return found;
}

/* The best k of n groups of neighbors: q->at[p] is the last border of group p. */
static void choose_borders(Quantizer *q, int64_t n, int64_t k) {
    const int64_t width = n + 16;
    for (int64_t i = 0; i < width; i++) q->best[i] = i ? INFINITY : 0;
    for (int64_t p = 1; p <= k; p++) {
        float *now = q->best + p * width;
        const float *before = now - width;
        now[0] = INFINITY; /* every group has something */
        for (int64_t j = 0; j < n; j++)
            now[j + 1] = lowest_sum(before, q->cost + j * n, (j + LANES) / LANES * LANES);
        for (int64_t j = n + 1; j < width; j++) now[j] = INFINITY;
    }
    int64_t end = n;
    for (int64_t p = k; p > 0; p--) {
        const float *before = q->best + (p - 1) * width, *cost = q->cost + (end - 1) * n, wanted = q->best[p * width + end];
        q->at[p - 1] = end;
        int64_t i = p - 1;
        while (i + 1 < end && before[i] + cost[i] != wanted) i++;
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

/* A step of Newton's method towards points that are the means of their cells, into q->step; 0 where the points are not
   near a minimum, or would pass each other. */
static int newton(const LineRow *row, Quantizer *q, int64_t k) {
    double below_part = 0;
    for (int64_t p = 0; p < k; p++) {
        const double from = p ? q->cells[p - 1].sum[0] : 0, to = p + 1 < k ? q->cells[p].sum[0] : row->sums[3 * row->n_cells];
        const double mass = to - from > 1e-12 ? to - from : 1e-12;
        const double low = p ? q->points[p - 1] + q->points[p] : 0, high = p + 1 < k ? q->points[p] + q->points[p + 1] : 0;
        const double left = p ? q->cells[p - 1].height * (q->means[p] - low / 2) / (2 * mass) : 0;
        const double right = p + 1 < k ? q->cells[p].height * (high / 2 - q->means[p]) / (2 * mass) : 0;
        double pivot = 1 - left - right - left * below_part;
        if (!(pivot > 0.02)) return 0;
        q->right[p] = below_part = right / pivot;
        q->step[p] = (q->means[p] - q->points[p] + (p ? left * q->step[p - 1] : 0)) / pivot;
    }
    for (int64_t p = k - 2; p >= 0; p--) q->step[p] += q->right[p] * q->step[p + 1];
    for (int64_t p = 0; p < k; p++) {
        const double room_left = p ? q->points[p] - q->points[p - 1] : INFINITY;
        const double room_right = p + 1 < k ? q->points[p + 1] - q->points[p] : INFINITY;
        const double room = room_left < room_right ? room_left : room_right;
        if (!(fabs(q->step[p]) <= 0.4 * room)) return 0;
    }
    return 1;
}

/* From the chosen borders to points that are the means of their cells. */
static void settle(const LineRow *row, Quantizer *q, int64_t k, double deviation) {
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
        const int jumps = round > 0 && newton(row, q, k);
        double furthest = 0;
        for (int64_t p = 0; p < k; p++) {
            const double moved = jumps ? q->points[p] + q->step[p] : q->means[p], by = fabs(moved - q->points[p]);
            furthest = by > furthest ? by : furthest;
            q->points[p] = moved;
        }
        if (furthest < 1e-6 * deviation) break;
    }
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
        set_costs(&q, n);
        choose_borders(&q, n, k);
        settle(&row, &q, k, sqrt(last[2] / last[0] - mean * mean));
        write_points(line, &row, &q, r);
    }
}
