/* Highest-density sets of mixtures on the line, and the mass above a value. Included after line.h, whose cells are
   monotone: on each, the part above a level is one interval, and its mass is a polynomial. */

#define POLISHING 32 /* rounds, at most; most sets need one or two */
#define OUT 0.02     /* by which an end beyond a peak or a valley is moved back, relative to the local scale */
#define NEAR 5e-3    /* relative distance of a height to a level at which interpolation may be wrong */
#define CLOSE 1e-6   /* a step after which the ends are right; beside a peak, steps are only halved by each other */

ALWAYS float smaller(float a, float b) { return a < b ? a : b; }
ALWAYS float greater(float a, float b) { return a > b ? a : b; }
ALWAYS float lower_end(const Cell *cell) { return smaller(cell->f0, cell->f1); }
ALWAYS float upper_end(const Cell *cell) { return greater(cell->f0, cell->f1); }

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

/* One end of a piece: its mass, and the shift by the logarithm of the level. Near the ends of a set the logarithm of a
   density is closer to a line than the density. */
typedef struct {
    double mass, height, log, rate, room, back;
} PieceEnd;

/* The pieces found so far, from left to right. */
typedef struct {
    int64_t n, most;
    double *lower, *upper;
    double fill, deepest;
    double start, end; /* of the open piece, which ends with the last cell */
    float peak, before, valley; /* heights of the open piece and the previous one, and the minimum between them */
    int any, open;
    int32_t *joins; /* whether a piece is joined to the one before */
    PieceEnd *ends;
} Pieces;

/* Opens a piece and ends the gap after the previous one. */
static void begin_piece(Pieces *p, double start) {
    p->open = 1, p->start = start, p->peak = 0;
}

/* Closes the open piece; joins it to the previous one if the gap is shallow. */
static void end_piece(Pieces *p) {
    p->open = 0;
    int joins = 0;
    if (p->any) {
        /* Far from all kernels, an interpolated density may be slightly below 0. */
        const float lower = smaller(p->peak, p->before), valley = greater(p->valley, 0);
        const double depth = lower > 0 ? (double)(valley / lower) : 1.0;
        p->deepest = depth < p->deepest ? depth : p->deepest;
        joins = p->fill < 1 && depth >= p->fill;
    }
    if (p->n == p->most) /* there is no room for another */
        p->upper[p->n - 1] = p->end;
    else
        p->joins[p->n] = joins, p->lower[p->n] = p->start, p->upper[p->n] = p->end, p->n++;
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

ALWAYS PieceEnd end_at(const LineRow *row, double x, double sign) {
    const Below found = below(row, x);
    const double height = found.height > 1e-300 ? found.height : 1e-300, slope = found.slope / height;
    const double rate = sign * slope < 0 ? 1 / slope : 0; /* 0 beyond a peak or a valley */
    const double room = 1 / sqrt(fabs(found.curve) / height + slope * slope + 1e-300);
    return (PieceEnd){sign * found.mass, height, log(height), rate, room, found.curve > 0 ? -sign * OUT * room : sign * OUT * room};
}

/* One step of Newton's method for the ends of all pieces, which lie at one height, and the logarithm of that height, with
   a given mass between them; NaN for a height that is given. Returns the longest step, relative to its room. */
static double move_ends(const LineRow *row, Pieces *p, double mass, double *level) {
    double held = 0, change = 0, expected = 0, furthest = 0;
    PieceEnd *ends = p->ends;
    for (int64_t i = 0; i < 2 * p->n; i++) {
        const double sign = i < p->n ? -1 : 1;
        ends[i] = end_at(row, i < p->n ? p->lower[i] : p->upper[i - p->n], sign);
        const double gain = sign * ends[i].rate * ends[i].height;
        held += ends[i].mass, change += gain, expected += gain * ends[i].log;
        const int64_t own = i < p->n ? i : i - p->n; /* the ends of a piece must not pass each other */
        const double most = 0.4 * (p->upper[own] - p->lower[own]);
        ends[i].room = ends[i].room < most ? ends[i].room : most;
    }
    if (!isnan(mass) && change < 0) {
        const double better = (mass - held + expected) / change - *level;
        *level += better > 2 ? 2 : better < -2 ? -2 : better;
    }
    for (int64_t i = 0; i < 2 * p->n; i++) {
        const double room = ends[i].room;
        const double by = ends[i].rate != 0 ? (*level - ends[i].log) * ends[i].rate : ends[i].back;
        const double step = by > room ? room : by < -room ? -room : by;
        *(i < p->n ? p->lower + i : p->upper + i - p->n) += step;
        furthest = fabs(step) > furthest * room ? fabs(step) / room : furthest;
    }
    return furthest;
}

/* Puts right the peaks and valleys that are close to a level, by which pieces begin and end; returns whether one of them
   was taken to be on the other side, by its height before and the level before. */
static int correct_turns(LineRow *row, double level, float before) {
    int changed = 0;
    for (int64_t i = 0; i + 1 < row->n_cells; i++) {
        Cell *cell = row->cells + i;
        if (cell[0].g1 != 0 || cell[1].g0 != 0 || fabs((double)cell->f1 - level) > NEAR * level) continue;
        double x = cell[1].x;
        Below found = below(row, x);
        for (int round = 0; round < 3; round++) {
            const double by = -found.slope / found.curve;
            if (!(fabs(by) < (double)cell[0].h + (double)cell[1].h)) break;
            found = below(row, x += by);
        }
        changed |= (cell->f1 >= before) != (found.height >= level);
        /* Rounding must not move it to the other side. */
        const float height = (float)found.height, at = (float)level;
        cell[0].f1 = cell[1].f0 = found.height >= level ? greater(height, nextafterf(at, INFINITY)) : smaller(height, nextafterf(at, 0));
    }
    return changed;
}

/* The pieces of a level, whose ends are put right: at the level, or where there is a given mass between them. */
static void set_pieces(LineRow *row, float level, double mass, Pieces *p) {
    const Pieces empty = *p;
    double height = log((double)level);
    for (int attempt = 0; attempt < 2; attempt++) {
        write_pieces(row, attempt ? (float)exp(height) : level, p);
        for (int round = 0; level > 0 && round < POLISHING; round++)
            if (move_ends(row, p, mass, &height) < CLOSE) break;
        if (!(level > 0) || attempt || !correct_turns(row, exp(height), level)) break;
        *p = empty;
    }
}

/* Joins pieces where gaps are closed. */
static void join_pieces(Pieces *p) {
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) {
        if (p->joins[i])
            p->upper[n - 1] = p->upper[i];
        else
            p->lower[n] = p->lower[i], p->upper[n] = p->upper[i], n++;
    }
    for (int64_t i = n; i < p->n; i++) p->lower[i] = p->upper[i] = NAN;
    p->n = n;
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
        Pieces pieces = {.most = line->n_columns, .lower = lower, .upper = upper, .fill = line->fill, .deepest = 1,
                         .valley = INFINITY, .joins = row.active, .ends = (PieceEnd *)row.sums};
        const double mass = line->given[r];
        const float level = !(mass > 0 && mass < 1) ? 0.0f : level_at(&row, mass * row.total);
        if (mass > 0) set_pieces(&row, level, mass, &pieces);
        join_pieces(&pieces);
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
        const double level = below(&row, x).height;
        const int64_t most = row.n_kernels + 1;
        Pieces pieces = {.most = most, .lower = row.sums, .upper = row.sums + most, .fill = 1, .deepest = 1,
                         .valley = INFINITY, .joins = row.active, .ends = (PieceEnd *)(row.sums + 2 * most)};
        correct_turns(&row, level, (float)level);
        set_pieces(&row, (float)level, NAN, &pieces);
        double share = 0;
        for (int64_t i = 0; i < pieces.n; i++)
            share += below(&row, pieces.upper[i]).mass - below(&row, pieces.lower[i]).mass;
        line->first[r] = share < 0 ? 0 : share < 1 ? share : 1; /* at a peak, ends may pass each other */
    }
}
