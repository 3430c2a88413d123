/* The step of one target for each row, given the hypotheses and score logits: cost, weights, losses and gradients in one
   pass over memory. A few rows at a time are transposed to [values][WIDTH], stay in the L1 cache during the loops of
   losses.h, and are transposed back. Included after step.h. */

#define SOME_ROWS 32

static int64_t one_target_rows(void) { return SOME_ROWS; }

static int64_t one_target_scratch(const OneTarget *step) {
    return WIDTH * (step->n_hypotheses * (step->n_dims + 3) + step->n_dims + 5);
}

/* The rows [first, first + n), n <= SOME_ROWS; `losses` are those of the assignment and of the scores. */
static void some_rows(const OneTarget *step, const Rule *rule, int64_t first, int64_t n, double *losses) {
    const int64_t n_k = step->n_hypotheses, n_d = step->n_dims, n_values = n_k * n_d;
    float *out = step->scratch, *logits = out + n_values * WIDTH, *cost = logits + n_k * WIDTH;
    float *weight = cost + n_k * WIDTH, *target = weight + n_k * WIDTH, *count = target + n_d * WIDTH;
    float *rest = count + WIDTH;
    Work work = {rest, rest + WIDTH, rest + 2 * WIDTH, rest + 3 * WIDTH, cost, weight, 0, 0};
    if (n < SOME_ROWS) memset(step->scratch, 0, (size_t)one_target_scratch(step) * sizeof(float)); /* padded rows have no weight */
    for (int64_t j = 0; j < SOME_ROWS; j++) count[j] = j < n, work.loss[j] = 0;
    turn(out, WIDTH, step->hypotheses + first * n_values, n_values, n, n_values);
    turn(target, WIDTH, step->targets + first * n_d, n_d, n, n_d);
    costs_of(0, rule, out, target, SOME_ROWS, &work);
    weights_of(rule, count, SOME_ROWS, &work);
    weigh(0, 0, rule, out, target, SOME_ROWS, &work);
    double all = 0;
    for (int64_t j = 0; j < SOME_ROWS; j++) all += work.loss[j];
    losses[0] = all * rule->share, losses[1] = 0;
    turn(step->cost + first * n_k, n_k, cost, WIDTH, n_k, n);
    turn(step->weights + first * n_k, n_k, weight, WIDTH, n_k, n);
    if (step->to_hypotheses) turn(step->to_hypotheses + first * n_values, n_values, out, WIDTH, n_values, n);
    for (int64_t j = 0; j < n; j++) step->winners[first + j] = (int32_t)work.winner[j];
    if (!step->logits) return;
    turn(logits, WIDTH, step->logits + first * n_k, n_k, n, n_k);
    losses[1] = scores_of(0, rule, logits, count, SOME_ROWS, &work);
    if (step->to_logits) turn(step->to_logits + first * n_k, n_k, logits, WIDTH, n_k, n);
}

static void one_target(const OneTarget *step) {
    const float share = 1 / (float)step->n_rows;
    const Rule rule = {step->n_hypotheses, step->n_dims, 1, 1, exponent(step->temperature), step->epsilon, 1, share, share};
    for (int64_t first = step->first; first < step->last; first += SOME_ROWS)
        some_rows(step, &rule, first, step->last - first < SOME_ROWS ? step->last - first : SOME_ROWS,
                  step->losses + first / SOME_ROWS * 2);
}
