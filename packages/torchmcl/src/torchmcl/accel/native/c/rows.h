/* Rows of hypotheses one function at a time, for those who call cost, rule, loss and scores themselves. The last
   vector of a row begins before the end of the one before it where the row is no whole number of vectors; `fresh` are
   its lanes that no other vector has. Rows shorter than a vector are filled. Included after step.h. */

/* The lowest of the lanes. */
ALWAYS float lowest_of(vec x) {
    four low = ((const four *)&x)[0];
    for (int i = 1; i < LANES / 4; i++) {
        const four other = ((const four *)&x)[i];
        for (int l = 0; l < 4; l++) low[l] = other[l] < low[l] ? other[l] : low[l];
    }
    const float first = low[0] < low[1] ? low[0] : low[1], second = low[2] < low[3] ? low[2] : low[3];
    return first < second ? first : second;
}

ALWAYS vec part_of(const float *row, int64_t k) { return (vec) * (const loose *)(row + k); }

ALWAYS void put(float *row, int64_t k, vec x) { *(loose *)(row + k) = (loose)x; }

ALWAYS float lowest_in(const float *row, int64_t last) {
    vec low = part_of(row, last);
    for (int64_t k = 0; k < last; k += LANES) low = pick(part_of(row, k) < low, part_of(row, k), low);
    return lowest_of(low);
}

/* NaN makes the sum NaN, and with it all weights. */
ALWAYS void softmin_row(float *out, const float *cost, int64_t last, ivec fresh, float factor) {
    const float lowest = lowest_in(cost, last);
    const vec end = vanishing_powers(factor * (part_of(cost, last) - lowest));
    vec sum = (vec)((ivec)end & fresh);
    for (int64_t k = 0; k < last; k += LANES) {
        const vec power = vanishing_powers(factor * (part_of(cost, k) - lowest));
        put(out, k, power);
        sum += power;
    }
    const float part = 1 / sum_of(sum);
    for (int64_t k = 0; k < last; k += LANES) put(out, k, part_of(out, k) * part);
    put(out, last, end * part);
}

/* `top` at the first lowest cost, or the first NaN, `rest` elsewhere. */
ALWAYS void winner_row(float *out, const float *cost, int64_t last, vec lanes, float top, float rest) {
    const float lowest = lowest_in(cost, last), none = (float)(last + LANES);
    const vec end = part_of(cost, last), at_end = lanes + (float)last;
    vec first = pick(end == lowest, at_end, all_of(none)), nan = pick(end != end, at_end, all_of(none));
    for (int64_t k = (last - 1) / LANES * LANES; last && k >= 0; k -= LANES) {
        const vec own = part_of(cost, k), at = lanes + (float)k;
        first = pick(own == lowest, at, first), nan = pick(own != own, at, nan);
        put(out, k, all_of(rest));
    }
    put(out, last, all_of(rest));
    const float bad = lowest_of(nan);
    out[(int64_t)(bad < none ? bad : lowest_of(first))] = top;
}

/* Adds the cross-entropies of a vector to `loss` and `product`, and returns their slopes. */
ALWAYS vec entropies(vec x, vec y, ivec counts, vec *loss, vec *product) {
    const vec power = vanishing_powers(-1.4426950408889634f * size_of(x)), most = 1.0f + power;
    *product *= pick(counts, most, all_of(1.0f));
    *loss += (vec)((ivec)((vec)((ivec)x & ~(x < 0.0f)) - x * y) & counts);
    return pick(x < 0.0f, power, all_of(1.0f)) * inverses(most) - y;
}

/* The binary cross-entropy of the logits of a row; `out`, if there is one, gets its gradient. */
ALWAYS float entropy_row(float *out, const float *logits, const float *labels, int64_t last, ivec fresh) {
    vec loss = {0}, product = all_of(1.0f);
    for (int64_t k = 0; k < last; k += LANES) {
        const vec slope = entropies(part_of(logits, k), part_of(labels, k), ~(ivec){0}, &loss, &product);
        if (out) put(out, k, slope);
    }
    const vec slope = entropies(part_of(logits, last), part_of(labels, last), fresh, &loss, &product);
    if (out) put(out, last, slope);
    return sum_of(loss + logarithms(product));
}

ALWAYS float product_row(const float *a, const float *b, int64_t last, ivec fresh) {
    vec sum = (vec)((ivec)(part_of(a, last) * part_of(b, last)) & fresh);
    for (int64_t k = 0; k < last; k += LANES) sum += part_of(a, k) * part_of(b, k);
    return sum_of(sum);
}

/* Row r of `work`, of n >= LANES columns. */
ALWAYS void one_row(const RowWise *work, int64_t r, int64_t n, float factor, vec lanes) {
    const float *values = work->values + r * n, *others = work->others + r * n;
    const int64_t last = n - LANES, before = (last + LANES - 1) / LANES * LANES;
    const ivec fresh = lanes >= (float)(before - last);
    if (work->kind == ENTROPIES)
        work->sums[r] = entropy_row(work->out ? work->out + r * n : 0, values, others, last, fresh);
    else if (work->kind == PRODUCTS)
        work->sums[r] = product_row(values, others, last, fresh);
    else if (factor < 0)
        softmin_row(work->out + r * n, values, last, fresh, factor);
    else
        winner_row(work->out + r * n, values, last, lanes, work->top, work->rest);
}

/* A row that does not fill a vector. The numbers that fill it count nothing. */
static void short_row(const RowWise *work, int64_t r, float factor, vec lanes) {
    const int64_t n = work->n_columns;
    float values[LANES], others[LANES], out[LANES], sum = 0;
    for (int64_t k = 0; k < LANES; k++) {
        values[k] = k < n ? work->values[r * n + k] : work->kind == WEIGHTS ? INFINITY : work->kind == ENTROPIES ? -1e30f : 0;
        others[k] = k < n && work->others ? work->others[r * n + k] : 0;
    }
    RowWise own = *work;
    own.values = values, own.others = others, own.out = work->out ? out : 0, own.sums = &sum;
    one_row(&own, 0, LANES, factor, lanes);
    for (int64_t k = 0; work->out && k < n; k++) work->out[r * n + k] = out[k];
    if (work->sums) work->sums[r] = sum;
}

static void row_wise(const RowWise *work) {
    const float factor = exponent(work->temperature);
    vec lanes = {0};
    for (int i = 0; i < LANES; i++) lanes[i] = (float)i;
    for (int64_t r = work->first; r < work->last; r++)
        if (work->n_columns < LANES)
            short_row(work, r, factor, lanes);
        else
            one_row(work, r, work->n_columns, factor, lanes);
}
