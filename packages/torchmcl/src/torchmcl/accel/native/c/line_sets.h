/* Highest-density sets of mixtures on the line, and the mass above a value. Included after line.h, whose cells are
   monotone: on each, the part above a level is one interval, and its mass is a polynomial. */

ALWAYS float smaller(float a, float b) { return a < b ? a : b; }
ALWAYS float greater(float a, float b) { return a > b ? a : b; }
ALWAYS float lower_end(const Cell *cell) { return smaller(cell->f0, cell->f1); }
ALWAYS float upper_end(const Cell *cell) { return greater(cell->f0, cell->f1); }

ALWAYS float value_in(const Cell *cell, float u) {
    float square, cube;
    bend_of(cell, &square, &cube);
    return cell->f0 + u * (cell->g0 + u * (square + u * cube));
}

/* The mass of a cell from its left end to u. */
ALWAYS float mass_to(const Cell *cell, float u) {
    float square, cube;
    bend_of(cell, &square, &cube);
    return cell->h * u * (cell->f0 + u * (0.5f * cell->g0 + u * (square * (1.0f / 3) + u * 0.25f * cube)));
}

/* The position in a cell where the density equals `level`, a value between those at the ends, and the slope there, by
   Newton's method inside a bracket. */
ALWAYS float place_in(const Cell *cell, float level, float *slope) {
    float square, cube, low = 0, high = 1, sign = cell->f1 > cell->f0 ? 1.0f : -1.0f;
    bend_of(cell, &square, &cube);
    float u = (level - cell->f0) / (cell->f1 - cell->f0);
    const float close = 1e-5f * fabsf(cell->f1 - cell->f0);
    for (int round = 0; round < 20; round++) {
        const float off = cell->f0 - level + u * (cell->g0 + u * (square + u * cube));
        *slope = cell->g0 + u * (2 * square + u * 3 * cube);
        if (fabsf(off) <= close) break;
        if (off * sign > 0)
            high = u;
        else
            low = u;
        const float next = u - off / *slope;
        u = round < 6 && next > low && next < high ? next : 0.5f * (low + high);
    }
    return u;
}

/* The mass of a cell above a level between the values at its ends, and its derivative with respect to the level. */
ALWAYS float part_above(const Cell *cell, float level, float *change) {
    float slope;
    const float u = place_in(cell, level, &slope), below = mass_to(cell, u);
    *change -= cell->h * level / (fabsf(slope) + 1e-30f);
    return cell->f1 > cell->f0 ? cell->mass - below : below;
}

/* The mass above a level. */
static double mass_denser(const LineRow *row, float level) {
    double sum = 0;
    float change = 0;
    for (int64_t i = 0; i < row->n_cells; i++) {
        const Cell *cell = row->cells + i;
        if (lower_end(cell) >= level)
            sum += (double)cell->mass;
        else if (upper_end(cell) > level)
            sum += (double)part_above(cell, level, &change);
    }
    return sum;
}

/* Heights are binned by the first bits of their logarithm, from the highest down to 2^-24 of it. */
#define BINS 192

ALWAYS int bin_of(float height, uint32_t highest) {
    uint32_t bits;
    memcpy(&bits, &height, sizeof bits);
    const int bin = (int)((highest - bits) >> 20);
    return bin < BINS - 1 ? bin : BINS - 1;
}

/* Approximates the level above which there is a given mass: half of the mass of a cell is counted at each end. */
static float about_level(const LineRow *row, double mass, float highest) {
    float masses[BINS] = {0};
    uint32_t top;
    memcpy(&top, &highest, sizeof top);
    for (int64_t i = 0; i < row->n_cells; i++) {
        const Cell *cell = row->cells + i;
        const float half = 0.5f * cell->mass;
        masses[bin_of(cell->f0, top)] += half;
        masses[bin_of(cell->f1, top)] += half;
    }
    float sum = 0, wanted = (float)mass;
    int bin = 0;
    while (bin < BINS - 1 && sum + masses[bin] < wanted) sum += masses[bin++];
    const float part = masses[bin] > 0 ? smaller((wanted - sum) / masses[bin], 1) : 0; /* greater than 1 only by rounding */
    const uint32_t bits = top - ((uint32_t)bin << 20) - (uint32_t)(part * (float)(1 << 20));
    float level;
    memcpy(&level, &bits, sizeof level);
    return level;
}

/* The level above which there is a given mass, between two others. Cells that are certainly above or below it are
   dropped. Returns whether it was found. */
static int level_between(LineRow *row, double mass, float low, float high, float *found) {
    const double close = 1e-5 * row->total;
    double sure = 0;
    int64_t n = 0;
    float level = *found, width = INFINITY;
    for (int64_t i = 0; i < row->n_cells; i++) {
        const Cell *cell = row->cells + i;
        const float bottom = lower_end(cell), top = upper_end(cell);
        sure += bottom >= high ? (double)cell->mass : 0;
        row->active[n] = (int32_t)i;
        n += top > low && bottom < high;
    }
    for (int round = 0; round < 60; round++) {
        double sum = sure;
        float change = 0;
        for (int64_t a = 0; a < n; a++) {
            const Cell *cell = row->cells + row->active[a];
            if (lower_end(cell) >= level)
                sum += (double)cell->mass;
            else if (upper_end(cell) > level)
                sum += (double)part_above(cell, level, &change);
        }
        const double excess = sum - mass;
        *found = level;
        if (fabs(excess) < close) return 1;
        if (excess > 0)
            low = level;
        else
            high = level;
        const float next = level - (float)(excess / (double)change);
        const int narrower = high - low <= 0.5f * width; /* Newton's method may oscillate */
        width = high - low;
        if ((round < 3 || narrower) && next > low && next < high)
            level = next;
        else
            level = low > 0.05f * high ? 0.5f * (low + high) : low > 0 ? sqrtf(low * high) : 0.1f * high;
        if (!(level > low && level < high)) break;
    }
    return 0;
}

static float level_at(LineRow *row, double mass) {
    float highest = 0;
    for (int64_t i = 0; i < row->n_cells; i++) highest = greater(highest, upper_end(row->cells + i));
    float level = about_level(row, mass, highest);
    if (level_between(row, mass, 0.7f * level, 1.4f * level, &level)) return level;
    level_between(row, mass, 0, highest, &level);
    return level;
}

/* The pieces found so far, from left to right. */
typedef struct {
    const Line *line;
    int64_t n;
    double *lower, *upper;
    double fill, deepest;
    double start, end; /* of the open piece, which ends with the last cell */
    float peak, before, valley; /* heights of the open piece and the previous one, and the minimum between them */
    int any, open;
} Pieces;

/* Opens a piece and ends the gap after the previous one. */
static void begin_piece(Pieces *p, double start) {
    p->open = 1, p->start = start, p->peak = 0;
}

/* Closes the open piece: joins it to the previous one if the gap is shallow, or if the output is full. */
static void end_piece(Pieces *p) {
    p->open = 0;
    int joins = 0;
    if (p->any) {
        const float lower = p->peak < p->before ? p->peak : p->before;
        const double depth = lower > 0 ? (double)(p->valley / lower) : 1.0;
        p->deepest = depth < p->deepest ? depth : p->deepest;
        joins = (p->fill < 1 && depth >= p->fill) || p->n == p->line->n_columns;
    }
    if (joins)
        p->upper[p->n - 1] = p->end;
    else
        p->lower[p->n] = p->start, p->upper[p->n] = p->end, p->n++;
    p->any = 1, p->before = p->peak, p->valley = INFINITY;
}

/* Processes a cell in which a piece begins or ends, or a cell next to one. */
static void write_border(const Cell *cell, float level, Pieces *p) {
    const int first = cell->f0 >= level, last = cell->f1 >= level;
    float slope;
    const double place = first == last ? 0 : cell->x + (double)(place_in(cell, level, &slope) * cell->h);
    if (first && !p->open) begin_piece(p, cell->x);
    if (!first && p->open) end_piece(p);
    if (first) p->peak = greater(p->peak, cell->f0);
    if (first && !last) p->end = place, end_piece(p);
    if (!first || !last) p->valley = smaller(p->valley, lower_end(cell));
    if (!first && last) begin_piece(p, place);
    if (last) p->peak = greater(p->peak, cell->f1), p->end = cell->x + (double)cell->h;
}

static void write_pieces(const LineRow *row, float level, Pieces *p) {
    for (int64_t part = 0; part < row->n_parts; part++) {
        p->valley = 0; /* the density between two parts is 0 */
        for (int64_t i = row->starts[part]; i < row->starts[part + 1]; i++) {
            const Cell *cell = row->cells + i;
            const float bottom = lower_end(cell), top = upper_end(cell);
            if (!p->open && top < level)
                p->valley = smaller(p->valley, bottom);
            else if (p->open && bottom >= level)
                p->peak = greater(p->peak, top), p->end = cell->x + (double)cell->h;
            else
                write_border(cell, level, p);
        }
        if (p->open) end_piece(p);
    }
}

static int64_t line_scratch(const Line *line) {
    LineRow row;
    return line_memory(line, &row, line->scratch) + line_points_memory(line);
}

static void line_sets(const Line *line) {
    LineRow row;
    line_memory(line, &row, line->scratch);
    for (int64_t r = 0; r < line->n_rows; r++) {
        double *lower = line->first + r * line->n_columns, *upper = line->second + r * line->n_columns;
        for (int64_t i = 0; i < line->n_columns; i++) lower[i] = upper[i] = NAN;
        line->counts[r] = 0, line->third[r] = NAN;
        if (!read_line(line, &row, r)) continue;
        Pieces pieces = {.line = line, .lower = lower, .upper = upper, .fill = line->fill, .deepest = 1, .valley = INFINITY};
        const double mass = line->given[r];
        const float level = !(mass > 0 && mass < 1) ? 0.0f : level_at(&row, mass * row.total);
        if (mass > 0) write_pieces(&row, level, &pieces);
        for (int64_t i = 0; i < pieces.n; i++)
            lower[i] = row.origin + row.unit * lower[i], upper[i] = row.origin + row.unit * upper[i];
        line->counts[r] = pieces.n, line->third[r] = pieces.deepest;
    }
}

/* The cell that contains x, or -1. */
static int64_t cell_of(const LineRow *row, double x) {
    int64_t low = 0, high = row->n_cells;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (row->cells[middle].x <= x)
            low = middle;
        else
            high = middle;
    }
    const Cell *cell = row->cells + low;
    return x >= cell->x && x <= cell->x + (double)cell->h ? low : -1;
}

static void line_above(const Line *line) {
    LineRow row;
    line_memory(line, &row, line->scratch);
    for (int64_t r = 0; r < line->n_rows; r++) {
        line->first[r] = NAN;
        if (isnan(line->given[r]) || !read_line(line, &row, r)) continue;
        const double x = (line->given[r] - row.origin) / row.unit;
        const int64_t own = cell_of(&row, x);
        line->first[r] = 1;
        if (own < 0) continue;
        const Cell *cell = row.cells + own;
        const float u = (float)((x - cell->x) / (double)cell->h);
        float level = value_in(cell, u);
        level = smaller(greater(level, lower_end(cell)), upper_end(cell)); /* cells are monotone up to rounding */
        const double share = mass_denser(&row, level) / row.total;
        line->first[r] = share < 1 ? share : 1;
    }
}
