"""Slow plain-loop float64 versions of everything, written from the equations of the paper.

A cost oracle takes one hypothesis and one target as float64 tensors and returns a scalar, so that
autograd gives the gradient as well. A rule oracle takes the cost of one sample as a list of rows
and which rows are real. Nothing here imports torchmcl.
"""

import itertools
import math

import numpy as np
import torch

# ------------------------------------------------------------------ costs of one pair


def _dot(a, b):
    total = torch.zeros((), dtype=torch.float64)
    for x, y in zip(a, b, strict=True):
        total = total + x * y
    return total


def _without_mean(a):
    return a - sum(a) / len(a)


def sq_euclidean(h, t):
    """l of Eq. (1): |y - f|^2."""
    return _dot(t - h, t - h)


def euclidean(h, t):
    return sq_euclidean(h, t).sqrt()


def l1(h, t):
    return sum(d if d > 0 else -d for d in t - h)


def huber(h, t, delta=1.0):
    return sum(d * d / 2 if abs(d) <= delta else delta * (abs(d) - delta / 2) for d in t - h)


def cosine(h, t):
    return 1 - _dot(h, t) / (_dot(h, h) * _dot(t, t)).sqrt()


def cross_entropy(h, t):
    return sum(h.exp()).log() - h[int(t)]


def neg_si_sdr(h, t, zero_mean=False):
    """Eq. (42) with the sign turned."""
    if zero_mean:
        h, t = _without_mean(h), _without_mean(t)
    cross = _dot(t, h) ** 2
    return -10 * torch.log10(cross / (_dot(t, t) * _dot(h, h) - cross))


def neg_snr(h, t, zero_mean=False):
    if zero_mean:
        h, t = _without_mean(h), _without_mean(t)
    return -10 * torch.log10(_dot(t, t) / _dot(t - h, t - h))


def pairwise(fn, hypotheses, targets, target_dims=1):
    """Apply `fn` to every pair of one sample, or of samples on equal leading axes."""
    if hypotheses.ndim > 2:
        return torch.stack([pairwise(fn, h, t, target_dims) for h, t in zip(hypotheses, targets, strict=True)])
    return torch.stack([torch.stack([fn(h, t) for h in hypotheses]) for t in targets])


# ------------------------------------------------------------------ rules of one sample


def _winner(row):
    best = 0
    for k, value in enumerate(row):
        if value < row[best]:
            best = k
    return best


def wta(cost, real):
    """Eq. (2): the Voronoi cell of each real target."""
    weights = []
    for row, is_real in zip(cost, real, strict=True):
        won = _winner(row)
        weights.append([float(is_real and k == won) for k in range(len(row))])
    return weights


def relaxed_wta(cost, real, epsilon):
    """q_epsilon below Eq. (41); a single hypothesis has nobody to share with."""
    weights = []
    for row, is_real in zip(cost, real, strict=True):
        n = len(row)
        if n == 1:
            weights.append([float(is_real)])
            continue
        won = _winner(row)
        weights.append([is_real * (1 - epsilon if k == won else epsilon / (n - 1)) for k in range(n)])
    return weights


def annealed_wta(cost, real, temperature):
    """Eq. (5), with its limits at 0 and infinity."""
    if temperature == 0:
        return wta(cost, real)
    weights = []
    for row, is_real in zip(cost, real, strict=True):
        lowest = min(row)
        terms = [math.exp(max(-(value - lowest) / temperature, -1e6)) for value in row]
        total = math.fsum(terms)
        weights.append([is_real * term / total for term in terms])
    return weights


def top_k(cost, real, n):
    weights = []
    for row, is_real in zip(cost, real, strict=True):
        chosen = sorted(range(len(row)), key=lambda k: (row[k], k))[:n]
        weights.append([is_real / n if k in chosen else 0.0 for k in range(len(row))])
    return weights


def pit(cost, real):
    """Eq. (38) by trying every injection of the real targets into the hypotheses."""
    rows = [s for s, is_real in enumerate(real) if is_real]
    n = len(cost[0]) if cost else 0
    best, best_cost = None, math.inf
    for chosen in itertools.permutations(range(n), len(rows)):
        total = sum(cost[s][k] for s, k in zip(rows, chosen, strict=True))
        if total < best_cost:
            best, best_cost = chosen, total
    weights = [[0.0] * n for _ in cost]
    for s, k in zip(rows, best, strict=True):
        weights[s][k] = 1.0
    return weights


def sinkhorn(cost, real, temperature, n_iters):
    """Rows and columns of exp(-cost / T) scaled in turn to uniform masses, rows once more at the end."""
    if temperature == 0:
        return wta(cost, real)
    rows = [s for s, is_real in enumerate(real) if is_real]
    n = len(cost[0]) if cost else 0
    weights = [[0.0] * n for _ in cost]
    if not rows:
        return weights
    plan = [[math.exp(-cost[s][k] / temperature) for k in range(n)] for s in rows]

    def scale_rows():
        for row in plan:
            total = sum(row)
            for k in range(n):
                row[k] /= total

    for _ in range(n_iters):
        scale_rows()
        for k in range(n):
            total = sum(row[k] for row in plan)
            for row in plan:
                row[k] *= len(rows) / n / total
    scale_rows()
    for s, row in zip(rows, plan, strict=True):
        weights[s] = row
    return weights


def sinkhorn_in_logarithms(cost, real, temperature, n_iters):
    """`sinkhorn` on logarithms, for costs whose exponentials leave float64."""
    if temperature == 0:
        return wta(cost, real)
    rows = [s for s, is_real in enumerate(real) if is_real]
    n = len(cost[0]) if cost else 0
    weights = [[0.0] * n for _ in cost]
    if not rows:
        return weights
    logs = [[-(value - min(cost[s])) / temperature for value in cost[s]] for s in rows]

    def log_sum(values):
        highest = max(values)
        return highest + math.log(math.fsum(math.exp(value - highest) for value in values))

    potentials = [0.0] * n
    for _ in range(n_iters):
        scaled = []
        for row in logs:
            total = log_sum([a + p for a, p in zip(row, potentials, strict=True)])
            scaled.append([a + p - total for a, p in zip(row, potentials, strict=True)])
        potentials = [
            p + math.log(len(rows) / n) - log_sum([row[k] for row in scaled]) for k, p in enumerate(potentials)
        ]
    for s, row in zip(rows, logs, strict=True):
        total = log_sum([a + p for a, p in zip(row, potentials, strict=True)])
        weights[s] = [math.exp(a + p - total) for a, p in zip(row, potentials, strict=True)]
    return weights


def emd(cost, real):
    """Exact uniform transport: split every mass into equal grains, then try all permutations of them."""
    rows = [s for s, is_real in enumerate(real) if is_real]
    n = len(cost[0])
    weights = [[0.0] * n for _ in cost]
    if not rows:
        return weights
    n_grains = math.lcm(len(rows), n)
    assert n_grains <= 6, "brute force is for tiny problems"
    sources = [s for s in rows for _ in range(n_grains // len(rows))]
    sinks = [k for k in range(n) for _ in range(n_grains // n)]
    best = min(itertools.permutations(sinks), key=lambda p: sum(cost[s][k] for s, k in zip(sources, p, strict=True)))
    for s, k in zip(sources, best, strict=True):
        weights[s][k] += len(rows) / n_grains
    return weights


def apply_rule(oracle, cost, mask=None, *parameters):
    """Apply a rule oracle to a tensor [..., targets, hypotheses]; returns float64."""
    n_targets, n_hypotheses = cost.shape[-2:]
    mask = torch.ones(cost.shape[:-1], dtype=torch.bool) if mask is None else mask.expand(cost.shape[:-1])
    flat = cost.detach().double().reshape(-1, n_targets, n_hypotheses).tolist()
    reals = mask.reshape(-1, n_targets).tolist()
    weights = [oracle(sample, real, *parameters) for sample, real in zip(flat, reals, strict=True)]
    return torch.tensor(weights, dtype=torch.float64).reshape(cost.shape)


# ------------------------------------------------------------------ loss and scores


def loss(cost, weights, mask, reduction="mean"):
    """Eq. (3) and (6) as an average over real targets, or Eq. (39) to (41) averaged over samples.

    cost, weights [batch, targets, hypotheses] and mask [batch, targets] are nested lists.
    """
    totals, means = [], []
    for rows, shares, reals in zip(cost, weights, mask, strict=True):
        mine = [
            sum(q * c for q, c in zip(share, row, strict=True))
            for row, share, real in zip(rows, shares, reals, strict=True)
            if real
        ]
        totals += mine
        if mine:
            means.append(sum(mine) / len(mine))
    chosen = totals if reduction == "mean" else means
    return sum(chosen) / len(chosen) if chosen else 0.0


def score_targets(cost, real):
    """The indicator of Eq. (4), averaged over the real targets of one sample."""
    n = len(cost[0])
    won = [_winner(row) for row, is_real in zip(cost, real, strict=True) if is_real]
    return [won.count(k) / len(won) if won else 0.0 for k in range(n)]


def _log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def score_loss(logits, labels, counts=None):
    """Eq. (4), averaged over hypotheses and over the samples that count."""
    values = []
    for index, (row, label_row) in enumerate(zip(logits, labels, strict=True)):
        if counts is None or counts[index]:
            bce = [-y * _log_sigmoid(x) - (1 - y) * _log_sigmoid(-x) for x, y in zip(row, label_row, strict=True)]
            values.append(sum(bce) / len(bce))
    return sum(values) / len(values) if values else 0.0


def normalized_scores(logits):
    logs = [_log_sigmoid(x) for x in logits]
    highest = max(logs)
    terms = [math.exp(value - highest) for value in logs]
    total = math.fsum(terms)
    return [term / total for term in terms]


# ------------------------------------------------------------------ metrics; samples are nested lists


def _mean(values):
    return sum(values) / len(values) if values else math.nan


def _distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def distortion(cost, mask):
    """Eq. (1)."""
    return _mean(
        [
            min(row)
            for rows, reals in zip(cost, mask, strict=True)
            for row, real in zip(rows, reals, strict=True)
            if real
        ]
    )


def rmse_of_mean(hypotheses, probabilities, targets, mask):
    errors = []
    for answers, scores, truths, reals in zip(hypotheses, probabilities, targets, mask, strict=True):
        mean = [sum(p * answer[d] for p, answer in zip(scores, answers, strict=True)) for d in range(len(answers[0]))]
        errors += [_distance(mean, truth) ** 2 for truth, real in zip(truths, reals, strict=True) if real]
    return math.sqrt(_mean(errors))


def oracle_rmse(hypotheses, targets, mask):
    errors = [
        min(_distance(answer, truth) ** 2 for answer in answers)
        for answers, truths, reals in zip(hypotheses, targets, mask, strict=True)
        for truth, real in zip(truths, reals, strict=True)
        if real
    ]
    return math.sqrt(_mean(errors))


def hypothesis_usage(weights, mask):
    rows = [
        share
        for shares, reals in zip(weights, mask, strict=True)
        for share, real in zip(shares, reals, strict=True)
        if real
    ]
    return [sum(share[k] for share in rows) / len(rows) for k in range(len(rows[0]))]


def usage_entropy(weights, real):
    """H of one sample's weights, averaged over its real targets."""
    rows = [share for share, is_real in zip(weights, real, strict=True) if is_real]
    if not rows:
        return 0.0
    usage = [sum(share[k] for share in rows) / len(rows) for k in range(len(rows[0]))]
    return -sum(p * math.log(p) for p in usage if p > 0)


def n_dead_hypotheses(cost, mask):
    winners = {
        _winner(row)
        for rows, reals in zip(cost, mask, strict=True)
        for row, real in zip(rows, reals, strict=True)
        if real
    }
    return len(cost[0][0]) - len(winners)


def measurement(cost, weights, mask, temperature):
    """D, D(q, f), H(q), F = D(q, f) - T H(q) and the rate in bits of cost [batch, targets, hypotheses]."""
    rows = [
        (i, c, w)
        for i, (cs, ws, ms) in enumerate(zip(cost.tolist(), weights.tolist(), mask.tolist(), strict=True))
        for c, w, real in zip(cs, ws, ms, strict=True)
        if real
    ]
    soft = _mean([sum(x * y for x, y in zip(c, w, strict=True)) for _, c, w in rows])
    entropy = _mean([-sum(q * math.log(q) for q in w if q > 0) for _, _, w in rows])
    # One target per input: the batch is one source. Several: each input is one, and they are averaged.
    groups = [[w for _, _, w in rows]]
    if cost.shape[1] > 1:
        groups = [[w for j, _, w in rows if j == i] for i in sorted({i for i, _, _ in rows})]
    rates = []
    for group in groups:
        usage = [_mean(column) for column in zip(*group, strict=True)]
        terms = [q * math.log2(q / u) for w in group for q, u in zip(w, usage, strict=True) if q > 0]
        rates.append(sum(terms) / len(group))
    return {
        "distortion": _mean([min(c) for _, c, _ in rows]),
        "soft_distortion": soft,
        "entropy": entropy,
        "free_energy": soft - temperature * entropy,
        "rate": _mean(rates),
    }


def score_calibration_error(scores, cost, mask, n_bins):
    bins = {}
    for score_row, rows, reals in zip(scores, cost, mask, strict=True):
        for row, real in zip(rows, reals, strict=True):
            for k, score in enumerate(score_row):
                if real:
                    bins.setdefault(min(int(score * n_bins), n_bins - 1), []).append((score, k == _winner(row)))
    n = sum(len(members) for members in bins.values())
    gaps = [
        len(members) * abs(_mean([s for s, _ in members]) - _mean([float(w) for _, w in members]))
        for members in bins.values()
    ]
    return sum(gaps) / n


def energy_score(hypotheses, probabilities, targets, mask):
    values = []
    for answers, scores, truths, reals in zip(hypotheses, probabilities, targets, mask, strict=True):
        pairs = list(zip(scores, answers, strict=True))
        spread = sum(p * q * _distance(a, b) for p, a in pairs for q, b in pairs)
        for truth, real in zip(truths, reals, strict=True):
            if real:
                values.append(sum(p * _distance(a, truth) for p, a in pairs) - spread / 2)
    return _mean(values)


# ------------------------------------------------------------------ theory, of one input x


def free_energy(cost, temperature):
    """Prop. 6 (iii): -T log sum_k exp(-cost_k / T), averaged over the targets; lists in, a float out."""
    total = 0.0
    for row in cost:
        lowest = min(row)
        total += lowest - temperature * math.log(sum(math.exp(-(value - lowest) / temperature) for value in row))
    return total / len(cost)


def distortion_and_entropy(cost, weights):
    """D(q, f) of Eq. (7) and H(q) in nats, averaged over the targets."""
    distortion = sum(q * c for qs, cs in zip(weights, cost, strict=True) for q, c in zip(qs, cs, strict=True))
    entropy = -sum(q * math.log(q) for qs in weights for q in qs if q > 0)
    return distortion / len(cost), entropy / len(cost)


def barycenter_and_block(samples, hypothesis, weights):
    """Prop. 2 (ii) and Eq. (13) of one hypothesis; `weights` are its q(f_k | y), one for each sample."""
    mass = sum(weights)
    dim = len(hypothesis)
    barycenter = [sum(w * y[i] for w, y in zip(weights, samples, strict=True)) / mass for i in range(dim)]
    block = [[0.0] * dim for _ in range(dim)]
    for w, y in zip(weights, samples, strict=True):
        for i in range(dim):
            for j in range(dim):
                block[i][j] += w / mass * (hypothesis[i] - y[i]) * (hypothesis[j] - y[j])
    return barycenter, block


def mutual_information(weights):
    """I(hypothesis; target) in bits from the joint distribution q(f_k | y) / N."""
    n = len(weights)
    usage = [sum(row[k] for row in weights) / n for k in range(len(weights[0]))]
    return sum(q / n * math.log2(q / usage[k]) for row in weights for k, q in enumerate(row) if q > 0)


def blahut_arimoto(cost, masses, temperature, n_iters):
    """Distortion and rate in bits after plain updates of the reproductions' masses from uniform ones."""
    n = len(cost[0])
    usage = [1 / n] * n
    for _ in range(n_iters):
        rows = []
        for row in cost:
            terms = [r * math.exp(-c / temperature) for r, c in zip(usage, row, strict=True)]
            rows.append([term / sum(terms) for term in terms])
        usage = [sum(p * row[k] for p, row in zip(masses, rows, strict=True)) for k in range(n)]
    pairs = [
        (p, q, c, k)
        for p, qs, cs in zip(masses, rows, cost, strict=True)
        for k, (q, c) in enumerate(zip(qs, cs, strict=True))
    ]
    distortion = sum(p * q * c for p, q, c, _ in pairs)
    rate = sum(p * q * math.log2(q / usage[k]) for p, q, _, k in pairs if q > 0)
    return distortion, rate


def gaussian_rate(distortion, variances):
    """Reverse water-filling, the level found by bisection."""
    if distortion >= sum(variances):
        return 0.0
    low, high = 0.0, max(variances)
    for _ in range(200):
        level = (low + high) / 2
        if sum(min(level, v) for v in variances) < distortion:
            low = level
        else:
            high = level
    return sum(0.5 * math.log2(v / level) for v in variances if v > level)


def critical_temperature(weights, means, deviation, n_places):
    """Bisect the lowest T with E exp((2 (y - m).z - |z|^2) / T) <= 1 on a grid of z, for equal round Gaussians."""
    means = np.asarray(means) - np.asarray(weights) @ np.asarray(means)
    axes = [np.linspace(-1, 1, n_places) * 2 * np.abs(means).max()] * means.shape[1]
    z = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 1, len(axes))
    square = (z**2).sum(axis=-1)
    low, high = 2 * deviation**2, 2 * ((means**2).sum(axis=-1).max() + deviation**2)
    for _ in range(40):
        t = (low + high) / 2
        exponents = (2 * (z * means).sum(axis=-1) - square) / t + 2 * deviation**2 * square / t**2
        low, high = (t, high) if (np.exp(exponents) @ weights).max() > 1 + 1e-12 else (low, t)
    return low


def n_distinct(hypotheses, tolerance):
    """How many places are kept when each hypothesis within `tolerance` of a kept one is dropped."""
    kept = []
    for h in hypotheses:
        if all(math.dist(h, other) > tolerance for other in kept):
            kept.append(h)
    return len(kept)


# ------------------------------------------------------------------ costs of sequences, one pair with a mask of steps


def _step_distances(h, t):
    return [euclidean(h[step], t[step]) for step in range(len(h))]


def ade(h, t, real=None):
    """Mean distance over real steps."""
    real = [True] * len(h) if real is None else real
    distances = [distance for distance, counts in zip(_step_distances(h, t), real, strict=True) if counts]
    return sum(distances) / len(distances) if distances else torch.zeros((), dtype=h.dtype)


def fde(h, t, real=None):
    """Distance at the last real step."""
    real = [True] * len(h) if real is None else real
    steps = [step for step, counts in enumerate(real) if counts]
    return euclidean(h[steps[-1]], t[steps[-1]]) if steps else torch.zeros((), dtype=h.dtype)


def sq_ade(h, t, real=None):
    """Mean squared distance over real steps."""
    real = [True] * len(h) if real is None else real
    squares = [sq_euclidean(h[step], t[step]) for step, counts in enumerate(real) if counts]
    return sum(squares) / len(squares) if squares else torch.zeros((), dtype=h.dtype)


def gaussian_nll(h, t, scale, real=None):
    """Negative log-density of independent normal coordinates, summed over real steps."""
    real = [True] * len(h) if real is None else real
    total = torch.zeros((), dtype=h.dtype)
    for step, counts in enumerate(real):
        if counts:
            for mean, value, width in zip(h[step], t[step], scale[step], strict=True):
                total = total + 0.5 * ((value - mean) / width) ** 2 + torch.log(width) + 0.5 * math.log(2 * math.pi)
    return total


def laplace_nll(h, t, scale, real=None):
    """Negative log-density of independent Laplace coordinates, summed over real steps."""
    real = [True] * len(h) if real is None else real
    total = torch.zeros((), dtype=h.dtype)
    for step, counts in enumerate(real):
        if counts:
            for location, value, width in zip(h[step], t[step], scale[step], strict=True):
                total = total + abs(value - location) / width + torch.log(2 * width)
    return total


def token_cross_entropy(h, t, real=None):
    """Mean cross-entropy over real tokens."""
    real = [True] * len(t) if real is None else real
    terms = [cross_entropy(h[step], t[step]) for step, counts in enumerate(real) if counts]
    return sum(terms) / len(terms) if terms else torch.zeros((), dtype=h.dtype)


def dice(h, t, real=None, smooth=1.0):
    """One minus the dice coefficient of the sigmoid of logits and a target."""
    overlap = inside = wanted = 0.0
    for row, (logits, values) in enumerate(zip(h, t, strict=True)):
        for column, (logit, value) in enumerate(zip(logits, values, strict=True)):
            if real is None or real[row][column]:
                probability = 1 / (1 + torch.exp(-logit))
                overlap, inside, wanted = overlap + probability * value, inside + probability, wanted + value
    return 1 - (2 * overlap + smooth) / (inside + wanted + smooth)


def scene_weights(rule, cost, scene, mask):
    """Weights of a rule on the mean cost of the real samples of each scene; cost [samples, targets, hypotheses]."""
    weights = torch.zeros_like(cost)
    for number in set(scene.tolist()):
        members = [i for i, s in enumerate(scene.tolist()) if s == number]
        for target in range(cost.shape[1]):
            counted = [i for i in members if mask[i, target]]
            if counted:
                mean = sum(cost[i, target] for i in counted) / len(counted)
                for i in counted:
                    weights[i, target] = rule(mean[None])[0]
    return weights


# ------------------------------------------------------------------ trajectories


def trajectory_errors(hypothesis, target, mask):
    """ADE, FDE at the last valid step and largest error of one hypothesis, lists of points."""
    valid = [math.dist(h, y) for h, y, m in zip(hypothesis, target, mask, strict=True) if m]
    return {"ade": sum(valid) / len(valid), "fde": valid[-1], "largest": max(valid)}


def forecast_value(agent, kept, value):
    """One number of one agent from its errors and probabilities; `value` is what to compute of them."""
    hypotheses, target, mask, chances = agent
    errors = [trajectory_errors(hypotheses[k], target, mask) for k in kept]
    return value(errors, [chances[k] for k in kept])


def _top(scores, k):
    return sorted(range(len(scores)), key=lambda i: -scores[i])[:k]


def _grouped(scene, counted):
    groups = {}
    for i, number in enumerate(scene):
        if counted[i]:
            groups.setdefault(number, []).append(i)
    return list(groups.values())


def mean_of_agents(agents, k, value):
    """The mean over agents (hypotheses, target, mask, scores)."""
    return _mean([forecast_value(agent, _top(agent[3], k), value) for agent in agents if any(agent[2])])


def joint_min_error(agents, scene, k, error, average_over):
    """The error of the best future of each scene, averaged over scenes or weighted by their agents."""
    counted = [any(mask) for _, _, mask, _ in agents]
    total = weight = 0.0
    for group in _grouped(scene, counted):
        n_hypotheses = len(agents[group[0]][0])
        scores = [sum(agents[i][3][j] for i in group) / len(group) for j in range(n_hypotheses)]
        means = []
        for j in _top(scores, k):
            errors = [trajectory_errors(agents[i][0][j], agents[i][1], agents[i][2]) for i in group]
            means.append(sum(e[error] for e in errors) / len(errors))
        times = len(group) if average_over == "agents" else 1
        total, weight = total + times * min(means), weight + times
    return total / weight


def collision_rate(hypotheses, scene, mask, distance, average_over):
    """Fraction of agents that collide, over all hypotheses."""

    def collide(i, j, k):
        return any(
            mask[i][s] and mask[j][s] and math.dist(hypotheses[i][k][s], hypotheses[j][k][s]) < distance
            for s in range(len(mask[i]))
        )

    by_scene = []
    for number in set(scene):
        members = [i for i in range(len(hypotheses)) if scene[i] == number and any(mask[i])]
        hits = [any(collide(i, j, k) for j in members if j != i) for k in range(len(hypotheses[0])) for i in members]
        by_scene += [hits] if hits else []
    if average_over == "scenes":
        return _mean([_mean(hits) for hits in by_scene])
    return _mean([hit for hits in by_scene for hit in hits])


def track_windows(rows, observed, future, step, stride=1, partial=False):
    """Windows {(first frame, person): (positions, how many are there)} of rows (frame, person, x, y)."""
    places = {(int(frame), int(person)): (x, y) for frame, person, x, y in rows}
    first = min(frame for frame, _ in places)
    found = {}
    for frame, person in places:
        n = 0
        while n < observed + future and (frame + n * step, person) in places:
            n += 1
        if n >= (observed + 1 if partial else observed + future) and (frame - first) // step % stride == 0:
            found[frame, person] = [places[frame + i * step, person] for i in range(n)]
    return found


# ------------------------------------------------------------------ scores of mixtures


def mixture_log_likelihood(shares, places, scales, target):
    """The logarithm of sum_k share_k prod_d N(target_d; place_kd, scale_kd^2)."""
    total = torch.zeros((), dtype=torch.float64)
    for share, place, scale in zip(shares, places, scales, strict=True):
        density = share
        for m, s, y in zip(place, scale, target, strict=True):
            density = density * torch.exp(-0.5 * ((y - m) / s) ** 2) / (s * math.sqrt(2 * math.pi))
        total = total + density
    return torch.log(total)


def mixture_crps(shares, places, scales, target, n_points=200_001, reach=40.0):
    """The integral of (F(t) - 1[t >= target])^2 for each coordinate, added up, by the midpoint rule."""
    points = torch.linspace(-reach, reach, n_points, dtype=torch.float64)
    middles = (points[1:] + points[:-1]) / 2
    total = torch.zeros((), dtype=torch.float64)
    for d, y in enumerate(target):
        below = torch.zeros_like(middles)
        for share, place, scale in zip(shares, places, scales, strict=True):
            below = below + share * 0.5 * (1 + torch.erf((middles - place[d]) / (scale[d] * math.sqrt(2))))
        total = total + ((below - (middles >= y).double()) ** 2).sum() * (points[1] - points[0])
    return total


# ---------------------------------------------------------------------- mixtures of normal kernels on the line


def mixture_height(weights, centers, widths, values):
    """Return the density of a mixture at values, [values]."""
    off = (np.asarray(values)[:, None] - centers) / widths
    return (weights / widths * np.exp(-0.5 * off**2)).sum(axis=1) / math.sqrt(2 * math.pi)


def mixture_masses_denser(weights, centers, widths, heights, n_places=16_000):
    """Return the mass that is denser than each height, from places that lie densely around every kernel."""
    n_each = max(n_places // len(centers), 161)
    places = np.unique((centers[:, None] + widths[:, None] * np.linspace(-9, 9, n_each)).ravel())
    height = mixture_height(weights, centers, widths, places)
    masses = np.diff(places) * (height[1:] + height[:-1]) / 2
    middle = mixture_height(weights, centers, widths, (places[1:] + places[:-1]) / 2)
    order = np.argsort(-middle)
    sums = np.concatenate([[0.0], np.cumsum(masses[order])]) / masses.sum()
    return sums[np.searchsorted(-middle[order], -np.asarray(heights))]


def mixture_mass(weights, centers, widths, low, high):
    """Return the mass between two places."""
    return sum(
        w * 0.5 * (math.erf((high - c) / (s * math.sqrt(2))) - math.erf((low - c) / (s * math.sqrt(2))))
        for w, c, s in zip(weights, centers, widths, strict=True)
    )


def mixture_distortion(weights, centers, widths, points):
    """Return the mean squared distance of a draw to the nearest of the points, in closed form."""
    points = sorted(points)
    borders = [-math.inf, *((a + b) / 2 for a, b in itertools.pairwise(points)), math.inf]
    total = 0.0
    for point, low, high in zip(points, borders[:-1], borders[1:], strict=True):
        for w, c, s in zip(weights, centers, widths, strict=True):
            a, b, off = (low - c) / s, (high - c) / s, (point - c) / s
            bell_a, bell_b = (math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) for z in (a, b))
            mass = 0.5 * (math.erf(b / math.sqrt(2)) - math.erf(a / math.sqrt(2)))
            edge_a, edge_b = (0.0 if math.isinf(z) else z * bell for z, bell in ((a, bell_a), (b, bell_b)))
            second = mass + edge_a - edge_b
            total += w * s * s * (second - 2 * off * (bell_a - bell_b) + off * off * mass)
    return total


# ---------------------------------------------------------------------- correlated normals, angles, shapes


def full_normal_nll(h, t, covariance):
    """Minus the log density of one vector, from the inverse and the determinant of a covariance."""
    off = t - h
    square = off @ torch.linalg.inv(covariance) @ off
    return 0.5 * (square + torch.linalg.det(covariance).log() + len(off) * math.log(2 * math.pi))


def sq_angle(h, t, period=2 * math.pi):
    """Squares of differences, each the shortest among neighboring turns."""
    turns = [period * n for n in range(-3, 4)]
    return sum(min((a - b + turn) ** 2 for turn in turns) for a, b in zip(h, t, strict=True))


def rotation_of_six(values):
    """The matrix whose first columns are the orthonormalized halves of six numbers."""
    first = values[:3] / _dot(values[:3], values[:3]).sqrt()
    second = values[3:6] - _dot(first, values[3:6]) * first
    second = second / _dot(second, second).sqrt()
    return torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1)


def geodesic_of_six(h, t):
    """The angle of the rotation from one to the other, by its trace."""
    trace = (rotation_of_six(h) * rotation_of_six(t)).sum()
    return torch.acos((trace - 1) / 2)


def rmsd(h, t, real=None, scaled=False):
    """The root mean squared distance of real points after the motion that the singular vectors give."""
    chosen = [i for i in range(len(h)) if real is None or real[i]]
    h, t = h[chosen], t[chosen]
    h, t = h - h.mean(0), t - t.mean(0)
    u, s, v = torch.linalg.svd(h.T @ t)
    signs = torch.ones(len(s), dtype=h.dtype)
    if torch.linalg.det(u @ v) < 0:
        signs[-1] = -1
    turned = h @ (u * signs) @ v
    size = (s * signs).sum() / (h * h).sum() if scaled else 1.0
    return ((size * turned - t) ** 2).sum(-1).mean().sqrt()


# ---------------------------------------------------------------------- masks of images


def _pixel_pairs(h, t, real=None):
    for row, (logits, values) in enumerate(zip(h, t, strict=True)):
        for column, (logit, value) in enumerate(zip(logits, values, strict=True)):
            if real is None or real[row][column]:
                yield logit, value


def iou(h, t, real=None, smooth=1.0):
    """One minus intersection over union of the sigmoid of logits and a target."""
    overlap = total = 0.0
    for logit, value in _pixel_pairs(h, t, real):
        probability = 1 / (1 + torch.exp(-logit))
        overlap, total = overlap + probability * value, total + probability + value
    return 1 - (overlap + smooth) / (total - overlap + smooth)


def mask_bce(h, t, real=None):
    """The mean of -t log p - (1 - t) log(1 - p)."""
    terms = [
        value * torch.log1p(torch.exp(-x)) + (1 - value) * torch.log1p(torch.exp(x))
        for x, value in _pixel_pairs(h, t, real)
    ]
    return sum(terms) / len(terms)


def focal(h, t, real=None, alpha=0.25, gamma=2.0):
    """The mean of -alpha t (1 - p)^gamma log p - (1 - alpha) (1 - t) p^gamma log(1 - p)."""
    terms = []
    for logit, value in _pixel_pairs(h, t, real):
        p = 1 / (1 + torch.exp(-logit))
        inside = alpha * (1 - p) ** gamma * -torch.log(p)
        terms.append(value * inside + (1 - value) * (1 - alpha) * p**gamma * -torch.log(1 - p))
    return sum(terms) / len(terms)
