/* Mixtures of normal kernels on the line, row by row: the density as monotone cubic pieces on cells that are fine where
   kernels are narrow.

   A kernel is added to nodes whose spacing suits its width; the spacings are the widest one divided by powers of two.
   Hermite interpolation transfers the sums of a coarse grid to the finer one inside it: each kernel costs about thirty
   exponentials, for any number of cells of the narrower kernels below it. Lengths are in units of the
   coarsest spacing, from the mean of the row. Included after step.h. */

#define REACH 5.0     /* widths around each center that have cells; `torchmcl.density.REACH` is the same */
#define SPACING 0.6   /* widest distance of two nodes, in widths of the narrowest kernel around */
#define FINE 0.4      /* the same for few kernels, whose errors do not even out */
#define FEW 4
#define N_LEVELS 41   /* widths that differ by more than 2^40 are not told apart */
#define NODES_EACH (96 + 24 * N_LEVELS) /* of a kernel, at most, with those of the coarser levels around it */

/* The density is f0 + g0 u + ... on x + u h, 0 <= u <= 1; g0 and g1 are its slopes there, times h. */
typedef struct {
    double x;
    float h, f0, f1, g0, g1, mass;
} Cell;

typedef struct {
    double left, right, center; /* the range of the cells, and the center */
    double per_unit, share;     /* widths in a unit, and the probability */
    double width, energy;       /* the width, and the mean of the square */
    float per_width, height;    /* of the kernel */
    int32_t level, run;
} Kernel;

/* Neighboring nodes first, first + 1, ..., last of a level; `at` is the index of the values of the first. */
typedef struct {
    int64_t first, last, at;
} Run;

typedef struct {
    double left;
    int64_t kernel;
} Begin;

/* Memory for a row. */
typedef struct {
    Kernel *kernels;
    Begin *begin;
    int32_t *alive; /* kernels of the remaining levels, sorted by left end */
    int32_t *starts; /* the first cell of each coarsest run, and the number of cells */
    Run *runs;
    float *f, *g;
    Cell *cells;
    double *sums;     /* integrals of 1, y and y^2 from the left up to each cell, [cells + 1][3] */
    float *spread;    /* the integral of the cube root of the density up to each cell */
    int32_t *active;
    int64_t n_cells, n_parts;
    double origin, unit, total; /* y = origin + unit x; the mass of all cells */
    double narrowest;           /* the smallest given width */
    int n_levels, n_kernels;
    int64_t begins[N_LEVELS + 1], next[N_LEVELS + 1]; /* runs of each level, and the first that was not visited */
} LineRow;

static int64_t line_memory(const Line *line, LineRow *row, float *memory) {
    const int64_t n = (line->n_kernels + 15) / 16 * 16, nodes = n * NODES_EACH, runs = n * N_LEVELS;
    char *at = (char *)memory;
    row->kernels = (Kernel *)at, at += n * (int64_t)sizeof(Kernel);
    row->begin = (Begin *)at, at += 2 * n * (int64_t)sizeof(Begin);
    row->alive = (int32_t *)at, at += 4 * n;
    row->starts = (int32_t *)at, at += 4 * (n + 16);
    row->runs = (Run *)at, at += runs * (int64_t)sizeof(Run);
    row->f = (float *)at, at += 4 * nodes;
    row->g = (float *)at, at += 4 * nodes;
    row->cells = (Cell *)at, at += 2 * nodes * (int64_t)sizeof(Cell);
    row->sums = (double *)at, at += 2 * nodes * 24;
    row->spread = (float *)at, at += 2 * nodes * 4;
    row->active = (int32_t *)at, at += 2 * nodes * 4;
    return (at - (char *)memory) / 4;
}

ALWAYS double given_at(const Line *line, const void *values, int64_t place) {
    return line->is_double ? ((const double *)values)[place] : (double)((const float *)values)[place];
}

/* Sorts kernels by their left ends: groups of eight by insertion, then by merging. */
static void sort_kernels(LineRow *row, int n) {
    Begin *now = row->begin, *other = now + n;
    for (int i = 0; i < n; i++) {
        const Begin own = {row->kernels[i].left, i};
        int j = i;
        for (; j % 8 && now[j - 1].left > own.left; j--) now[j] = now[j - 1];
        now[j] = own;
    }
    for (int width = 8; width < n; width *= 2) {
        for (int start = 0; start < n; start += 2 * width) {
            int a = start, b = start + width < n ? start + width : n, to = start;
            const int middle = b, stop = b + width < n ? b + width : n;
            while (a < middle && b < stop) {
                const int later = now[b].left < now[a].left;
                other[to++] = later ? now[b] : now[a];
                a += !later, b += later;
            }
            while (a < middle) other[to++] = now[a++];
            while (b < stop) other[to++] = now[b++];
        }
        Begin *swap = now;
        now = other, other = swap;
    }
    for (int i = 0; i < n; i++) row->alive[i] = (int32_t)now[i].kernel;
}

/* The smallest l with 2^l >= ratio, for ratio >= 1. */
ALWAYS int32_t level_of(double ratio) {
    int64_t bits;
    memcpy(&bits, &ratio, sizeof bits);
    return (int32_t)(((bits - 1) >> 52) - 1022);
}

/* Reads the kernels of a row with positive weight; returns their number, or 0 if any value is not finite. */
static int read_kernels(const Line *line, LineRow *row, int64_t at) {
    const int64_t begin = at * line->n_kernels;
    int n_heavy = 0;
    double weights = 0, mean = 0, widest = 0, low = INFINITY, high = -INFINITY, narrowest = INFINITY;
    for (int64_t i = begin; i < begin + line->n_kernels; i++) {
        const double w = given_at(line, line->weights, i), c = given_at(line, line->centers, i);
        const double s = given_at(line, line->widths, i);
        if (!(isfinite(w) && isfinite(c) && isfinite(s))) return 0;
        narrowest = s < narrowest ? s : narrowest;
        if (!(w > 0)) continue;
        n_heavy++, weights += w, mean += w * c;
        widest = s > widest ? s : widest, low = c < low ? c : low, high = c > high ? c : high;
    }
    const double per_weight = 1 / weights;
    mean *= per_weight;
    if (!(weights > 0) || !isfinite(per_weight) || !isfinite(mean) || !isfinite(high - low)) return 0;
    /* Smaller distances are ignored: the mean of equal centers differs from them by rounding. */
    const double apart = (high - low) * 0x1p-44, rounding = fmax(fabs(high), fabs(low)) * 0x1p-54;
    const double across = apart > rounding ? apart : rounding;
    widest = widest > across ? widest : across;
    widest = widest > 1e-280 ? widest : 1e-280;
    const double least = across > widest * 0x1p-40 ? across : widest * 0x1p-40;
    const double spacing = n_heavy > FEW ? SPACING : FINE;
    row->origin = mean, row->unit = spacing * widest, row->narrowest = narrowest, row->n_levels = 0;
    const double per_unit = 1 / row->unit;
    int n = 0;
    for (int64_t i = begin; i < begin + line->n_kernels; i++) {
        const double w = given_at(line, line->weights, i) * per_weight, given = given_at(line, line->widths, i);
        if (!(w > 1e-9)) continue;
        const double s = given > least ? given : least;
        Kernel *own = row->kernels + n++;
        own->center = (given_at(line, line->centers, i) - mean) * per_unit;
        const double ratio = widest / s, per_width = spacing * ratio, reach = REACH * (s * per_unit);
        own->per_width = (float)per_width, own->height = (float)(w * 0.3989422804014327 * per_width);
        own->left = own->center - reach, own->right = own->center + reach;
        own->per_unit = row->unit / s, own->share = w, own->width = s * per_unit;
        own->energy = own->center * own->center + own->width * own->width;
        own->level = level_of(ratio);
        row->n_levels = own->level + 1 > row->n_levels ? own->level + 1 : row->n_levels;
    }
    return n;
}

/* Interpolates values and slopes at twice as many nodes. */
ALWAYS void halve(const float *restrict f, const float *restrict g, int64_t n, float *restrict to, float *restrict slope) {
    for (int64_t i = 0; i < n; i++) {
        to[2 * i] = f[i], slope[2 * i] = 0.5f * g[i];
        to[2 * i + 1] = 0.5f * (f[i] + f[i + 1]) + 0.125f * (g[i] - g[i + 1]);
        slope[2 * i + 1] = 0.75f * (f[i + 1] - f[i]) - 0.125f * (g[i] + g[i + 1]);
    }
    to[2 * n] = f[n], slope[2 * n] = 0.5f * g[n];
}

/* Adds a kernel to the nodes of its run from `first` to `last`, and to those that fill the first and the last vector:
   overlapping kernels then use the same vectors, so that stores are forwarded to loads. From one vector to the next a
   Gaussian changes by a factor that itself changes by a constant factor; the widest vectors start where floats underflow. */
ALWAYS void add_kernel(const Kernel *own, const LineRow *row, const Run *run, int64_t first, int64_t last, double spacing) {
    const int64_t start = (first - run->first) / LANES * LANES, n = last - run->first + 1;
    const float step = (float)spacing * own->per_width, slope = -own->height * step, jump = (float)LANES * step;
    float *f = row->f + run->at, *g = row->g + run->at;
    vec z;
    for (int i = 0; i < LANES; i++) z[i] = (float)i * step;
    z += (float)((double)(run->first + start) * spacing - own->center) * own->per_width;
    vec bell = powers_of_two(-0.72134752f * z * z), factor = inner_powers(-0.72134752f * jump * (2 * z + jump));
    const vec change = inner_powers((vec){0} - 1.44269504f * jump * jump);
    for (int64_t i = start; i < n; i += LANES) {
        if (LANES > 8) bell = powers_of_two(-0.72134752f * z * z);
        *(vec *)(f + i) += own->height * bell;
        *(vec *)(g + i) += slope * z * bell;
        z += jump, bell *= factor, factor *= change;
    }
}

/* Creates the runs of a level around the remaining kernels; values are interpolated from the level above. */
static int64_t open_runs(LineRow *row, int level, int n_alive, int64_t at) {
    const double scale = ldexp(0.5, level);
    const int64_t begin = row->begins[level];
    int64_t n = begin - 1;
    for (int i = 0; i < n_alive; i++) {
        Kernel *own = row->kernels + row->alive[i];
        /* Pairs of nodes, so that complete cells of the level above are halved. */
        const int64_t first = 2 * (int64_t)floor(own->left * scale), last = 2 * (int64_t)ceil(own->right * scale);
        if (n < begin || first > row->runs[n].last)
            row->runs[++n] = (Run){first, last, 0};
        else if (last > row->runs[n].last)
            row->runs[n].last = last;
        own->run = (int32_t)n;
    }
    row->begins[level + 1] = n + 1;
    int64_t above = level ? row->begins[level - 1] : 0;
    for (int64_t r = begin; r <= n; r++) {
        Run *run = row->runs + r;
        const int64_t length = run->last - run->first;
        run->at = at;
        if (level) {
            const int64_t from = run->first / 2; /* exact */
            while (row->runs[above].last < from + length / 2) above++;
            const int64_t place = row->runs[above].at + from - row->runs[above].first;
            halve(row->f + place, row->g + place, length / 2, row->f + at, row->g + at);
        } else {
            memset(row->f + at, 0, (size_t)(length + 1) * sizeof(float));
            memset(row->g + at, 0, (size_t)(length + 1) * sizeof(float));
        }
        at += (length + 1 + LANES - 1) / LANES * LANES; /* whole vectors */
    }
    return at;
}

static void fill_levels(LineRow *row, int n) {
    int64_t at = 0;
    int n_alive = n;
    row->begins[0] = 0;
    for (int level = 0; level < row->n_levels; level++) {
        at = open_runs(row, level, n_alive, at);
        const double spacing = ldexp(1.0, -level), pairs = ldexp(0.5, level);
        int left = 0;
        for (int i = 0; i < n_alive; i++) {
            const Kernel *own = row->kernels + row->alive[i];
            if (own->level > level) {
                row->alive[left++] = row->alive[i];
                continue;
            }
            const Run *run = row->runs + own->run;
            const int64_t first = 2 * (int64_t)floor(own->left * pairs), last = 2 * (int64_t)ceil(own->right * pairs);
            add_kernel(own, row, run, first, last, spacing);
        }
        n_alive = left;
    }
}

ALWAYS float mass_of(float h, float f0, float f1, float g0, float g1) {
    const float mass = h * (0.5f * (f0 + f1) + (g0 - g1) * (1.0f / 12));
    return mass > 0 ? mass : 0;
}

/* The coefficients of u^2 and u^3 on a cell. */
ALWAYS void bend_of(const Cell *cell, float *square, float *cube) {
    const float rise = cell->f1 - cell->f0;
    *square = 3 * rise - 2 * cell->g0 - cell->g1, *cube = cell->g0 + cell->g1 - 2 * rise;
}

/* Splits a cell at a maximum or minimum of the density, so that the density is monotone on every cell. */
static Cell *cut(Cell *cell) {
    float square, cube;
    bend_of(cell, &square, &cube);
    const float root = sqrtf(square * square - 3 * cube * cell->g0), sum = -(square + (square > 0 ? root : -root));
    float u = cell->g0 / sum;
    if (!(u > 0 && u < 1)) u = sum / (3 * cube);
    if (!(u > 1e-4f && u < 0.9999f)) return cell + 1;
    float f = cell->f0 + u * (cell->g0 + u * (square + u * cube));
    f = f > 0 ? f : 0;
    cell[1] = (Cell){cell->x + (double)(u * cell->h), (1 - u) * cell->h, f, cell->f1, 0, (1 - u) * cell->g1, 0};
    cell[0] = (Cell){cell->x, u * cell->h, cell->f0, f, u * cell->g0, 0, 0};
    for (int i = 0; i < 2; i++) cell[i].mass = mass_of(cell[i].h, cell[i].f0, cell[i].f1, cell[i].g0, cell[i].g1);
    return cell + 2;
}

/* Visits a run and the finer runs inside it from left to right; returns the position of the next cell. */
static Cell *walk(LineRow *row, int level, const Run *run, Cell *cell) {
    const int below = level + 1;
    int64_t i = run->first;
    const double spacing = ldexp(1.0, -level);
    while (i < run->last) {
        int64_t stop = run->last;
        const Run *inner = 0;
        if (below < row->n_levels && row->next[below] < row->begins[below + 1]) {
            inner = row->runs + row->next[below];
            if (inner->first / 2 < stop)
                stop = inner->first / 2;
            else
                inner = 0;
        }
        const float h = (float)spacing;
        for (; i < stop; i++) {
            const float *f = row->f + run->at + (i - run->first), *g = row->g + run->at + (i - run->first);
            *cell = (Cell){(double)i * spacing, h, f[0], f[1], g[0], g[1], mass_of(h, f[0], f[1], g[0], g[1])};
            cell = g[0] * g[1] < 0 ? cut(cell) : cell + 1;
        }
        if (inner) {
            row->next[below]++;
            cell = walk(row, below, inner, cell);
            i = inner->last / 2;
        }
    }
    return cell;
}

/* Computes the density of a row as cells; returns 0 if the row has no density. */
static int read_line(const Line *line, LineRow *row, int64_t at) {
    const int n = row->n_kernels = read_kernels(line, row, at);
    if (!n) return 0;
    sort_kernels(row, n);
    fill_levels(row, n);
    Cell *cell = row->cells;
    for (int level = 0; level < row->n_levels; level++) row->next[level] = row->begins[level];
    for (int64_t r = 0; r < row->begins[1]; r++) {
        row->starts[r] = (int32_t)(cell - row->cells);
        cell = walk(row, 0, row->runs + r, cell);
    }
    row->n_cells = cell - row->cells, row->n_parts = row->begins[1];
    row->starts[row->n_parts] = (int32_t)row->n_cells;
    row->total = 0;
    for (int64_t i = 0; i < row->n_cells; i++) row->total += (double)row->cells[i].mass;
    return 1;
}
