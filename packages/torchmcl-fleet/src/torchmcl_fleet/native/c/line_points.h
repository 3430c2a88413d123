/* The points of lowest mean squared distance to a draw of a mixture on the line: Newton's method for points that are the
   means of their cells, from the best groups. Included after normal.h and line_groups.h, before line_sets.h. */

#define ROUNDS 12 /* at most */
#define EXACT_ROUNDS 30 /* at most; most rows need one */
#define EQUAL 1e-4 /* relative difference of mean squared distances of points that are equally good */

/* Mass and mean of each cell between the borders, in order; a cell without mass keeps its point. */
static void set_means(const LineRow *row, Quantizer *q, int64_t k) {
    for (int64_t p = 0; p < k; p++) {
        const double *high = p + 1 < k ? q->cells[p].sum : row->sums + 3 * row->n_cells;
        const double mass = high[0] - (p ? q->cells[p - 1].sum[0] : 0), first = high[1] - (p ? q->cells[p - 1].sum[1] : 0);
        q->means[p] = mass > 1e-12 ? first / mass : q->points[p];
        if (p && !(q->means[p] >= q->means[p - 1])) q->means[p] = q->means[p - 1];
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
        const double z = (x - own->center) * own->per_unit, mass = z < NORMAL_REACH ? 0 : own->share;
        near[n_near] = i, n_near += (z < NORMAL_REACH) & (z > -NORMAL_REACH);
        found.sum[0] += mass, found.sum[1] += mass * own->center, found.sum[2] += mass * own->energy;
    }
    for (int j = 0; j < n_near; j++) {
        const Kernel *own = row->kernels + near[j];
        double bell;
        const double mass = own->share * normal_below((x - own->center) * own->per_unit, &bell);
        const double reach = own->share * own->width * 0.3989422804014327 * bell;
        found.height += reach * own->per_unit * own->per_unit, found.sum[0] += mass;
        found.sum[1] += own->center * mass - reach, found.sum[2] += own->energy * mass - (own->center + x) * reach;
    }
    return found;
}

/* Replaces the cells between the points, and the integrals over the whole line, by exact ones. */
static void set_exact_cells(LineRow *row, Quantizer *q, int64_t k) {
    double *whole = row->sums + 3 * row->n_cells;
    whole[0] = whole[1] = whole[2] = 0;
    for (int i = 0; i < row->n_kernels; i++) {
        const Kernel *own = row->kernels + i;
        whole[0] += own->share, whole[1] += own->share * own->center, whole[2] += own->share * own->energy;
    }
    for (int64_t p = 0; p + 1 < k; p++) q->cells[p] = exactly_below(row, (q->points[p] + q->points[p + 1]) / 2);
    set_means(row, q, k);
}

/* Moves points from the chosen borders until they are the means of their cells: first of the interpolated density, whose
   errors of 1e-4 are then removed by Newton's method with exact integrals. */
static void settle(LineRow *row, Quantizer *q, int64_t k, double deviation, const int64_t *start) {
    for (int64_t p = 0; p + 1 < k; p++) q->cells[p] = q->borders[start[p]];
    /* Groups without mass keep a point at the lower end: points must stay in order. */
    for (int64_t p = 0; p < k; p++) q->points[p] = row->cells[0].x, q->at[p] = row->n_cells / 2;
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
        /* unless branches are so far apart that they move by several widths: then masses stay between 0 and 1 */
        const double none[3] = {0}, *before = p ? q->cells[p - 1].sum : none, *whole = row->sums + 3 * row->n_cells;
        const double *bound = q->cells[p].sum[0] < before[0] ? before : q->cells[p].sum[0] > whole[0] ? whole : 0;
        if (bound) memcpy(q->cells[p].sum, bound, sizeof none);
    }
    for (int64_t p = 0; p < k; p++) q->points[p] += q->step[p];
    set_means(row, q, k);
}

/* Integrals over the cell of a point. */
ALWAYS void integrals_of(const LineRow *row, const Quantizer *q, int64_t k, int64_t p, double *part) {
    const double *last = row->sums + 3 * row->n_cells;
    for (int i = 0; i < 3; i++) part[i] = (p + 1 < k ? q->cells[p].sum[i] : last[i]) - (p ? q->cells[p - 1].sum[i] : 0);
}

static void write_points(const Line *line, const LineRow *row, const Quantizer *q, int64_t r) {
    const int64_t k = line->n_columns;
    for (int64_t p = 0; p < k; p++) {
        double part[3];
        integrals_of(row, q, k, p, part);
        const double mass = part[0] > 0 ? part[0] : 0, mean = q->means[p];
        const double variance = mass > 1e-12 ? part[2] / mass - mean * mean : 0;
        const double deviation = variance > 0 ? row->unit * sqrt(variance) : 0, least = 1e-3 * row->narrowest;
        line->first[r * k + p] = row->origin + row->unit * mean;
        line->second[r * k + p] = mass / row->sums[3 * row->n_cells];
        line->third[r * k + p] = deviation > least ? deviation : least;
    }
}

/* Writes the points of lowest mean squared distance of those that the starts lead to; of equally good ones, the lowest. */
static void write_best(const Line *line, LineRow *row, Quantizer *q, int64_t r, int n_starts) {
    const int64_t k = line->n_columns;
    double *whole = row->sums + 3 * row->n_cells, least = INFINITY, lowest = INFINITY;
    const double given[3] = {whole[0], whole[1], whole[2]}, mean = given[1] / given[0];
    const double deviation = sqrt(given[2] / given[0] - mean * mean);
    for (int s = 0; s < n_starts; s++) {
        memcpy(whole, given, sizeof given);
        settle(row, q, k, deviation, q->starts + s * (k + 1));
        double distance = 0, sum = 0;
        for (int64_t p = 0; p < k; p++) {
            double part[3];
            integrals_of(row, q, k, p, part);
            distance += part[2] - q->means[p] * (2 * part[1] - q->means[p] * part[0]), sum += q->means[p];
        }
        const double better = least - distance, equal = EQUAL * distance;
        if (s && !(better > equal || (better > -equal && sum < lowest))) continue;
        least = distance, lowest = sum;
        write_points(line, row, q, r);
        if (EQUAL * distance < 1e-14 * given[2]) break; /* rounding errors exceed the differences between starts */
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
        set_borders(&row, &q, n);
        int n_starts = 1;
        if (are_many(line)) {
            for (int64_t p = 0; p < k; p++) q.starts[p] = (p + 1) * n / k;
        } else {
            set_costs(&q, n);
            n_starts = choose_borders(&q, n, k);
        }
        write_best(line, &row, &q, r, n_starts);
    }
}
