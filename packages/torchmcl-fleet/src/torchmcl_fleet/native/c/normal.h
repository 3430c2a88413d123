/* Mixtures of normal kernels at a place, without interpolation of their sum: mass up to it, density, slope and curvature
   there, with errors of 1e-10. Ends of sets are put right with it. Included after line.h. */

typedef struct {
    double mass, height, slope, curve;
} Below;

/* The normal distribution function and exp(-z^2 / 2), from a table: a cubic, and a series around a node. */
ALWAYS double normal_below(double z, double *bell) {
    const double inner = z < -NORMAL_REACH ? -NORMAL_REACH : z > NORMAL_REACH ? NORMAL_REACH : z;
    const double place = (inner + NORMAL_REACH) * NORMAL_NODES;
    const int cell = place < NORMAL_SIZE - 1 ? (int)place : NORMAL_SIZE - 1;
    const double u = place - cell, *t = normal_table[cell], by = u * (1.0 / NORMAL_NODES);
    const double down = by * (cell * (-1.0 / NORMAL_NODES) + NORMAL_REACH - 0.5 * by);
    *bell = t[4] * (1 + down * (1 + down * (0.5 + down * (1.0 / 6 + down * (1.0 / 24)))));
    return t[0] + u * (t[1] + u * (t[2] + u * t[3]));
}

static Below below(const LineRow *row, double x) {
    Below found = {0, 0, 0, 0};
    for (int i = 0; i < row->n_kernels; i++) {
        const Kernel *own = row->kernels + i;
        double bell;
        const double z = (x - own->center) * own->per_unit;
        found.mass += own->share * normal_below(z, &bell);
        const double height = own->share * own->per_unit * 0.3989422804014327 * bell;
        found.height += height, found.slope -= height * z * own->per_unit;
        found.curve += height * (z * z - 1) * own->per_unit * own->per_unit;
    }
    return found;
}
