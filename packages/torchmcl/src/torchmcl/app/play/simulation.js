// Hypotheses among points: one sweep gives weights, masses and measures; one step moves every hypothesis.
(function (play) {
  "use strict";

  // A gradient step divided by the mass of its hypothesis; 1 would be Lloyd's algorithm, which is too fast to watch.
  const RATE = 0.2;
  // Coinciding hypotheses have equal gradients: without noise, small relative to sqrt(T), they would never split.
  const PUSH = 1e-3;
  const MOST_RECORDS = 1200;

  // Points are taken in blocks: the weights of a block stay in the first cache.
  const BLOCK = 32;

  function workspace(n) {
    const fresh = (length = n) => new Float64Array(length);
    return {
      cost: fresh(), weights: fresh(), mass: fresh(), x: fresh(), y: fresh(), wins: fresh(), unused: fresh(),
      block: fresh(n * BLOCK), total: fresh(BLOCK), heat: fresh(BLOCK),
    };
  }

  /** Fill the workspace with masses, weighted sums and wins, and return the measures of the hypotheses. */
  function sweep(points, hypotheses, rule, work, temperature) {
    for (const sums of [work.mass, work.x, work.y, work.wins]) sums.fill(0);
    const n = points.length / 2, collect = rule.softness > 0 ? sumSoft : rule.epsilon === undefined ? sumRows : sumWinners;
    const { hard, soft, entropy } = collect(points, hypotheses, rule, work);
    return measures(work, n, hard / n, soft / n, entropy / n, temperature);
  }

  /** Write the costs of a point and return the place of the first cheapest. */
  function costs(px, py, hypotheses, cost) {
    let best = 0, lowest = Infinity;
    for (let j = 0; j < cost.length; j++) {
      const dx = px - hypotheses[2 * j], dy = py - hypotheses[2 * j + 1], value = dx * dx + dy * dy;
      cost[j] = value;
      if (value < lowest) { lowest = value; best = j; }
    }
    return best;
  }

  /** Sum over all points and hypotheses, for any rule. */
  function sumRows(points, hypotheses, rule, work) {
    const { cost, weights, mass, x, y, wins } = work, k = cost.length;
    let hard = 0, soft = 0, entropy = 0;
    for (let i = 0; i < points.length; i += 2) {
      const px = points[i], py = points[i + 1], best = costs(px, py, hypotheses, cost);
      entropy += rule(cost, weights, best);
      hard += cost[best];
      wins[best]++;
      for (let j = 0; j < k; j++) {
        const weight = weights[j];
        if (weight < 1e-12) continue; // adds nothing to sums of thousands
        mass[j] += weight; x[j] += weight * px; y[j] += weight * py; soft += weight * cost[j];
      }
    }
    return { hard, soft, entropy };
  }

  /** The same sums for softmin weights, which dominate the run time. */
  function sumSoft(points, hypotheses, rule, work) {
    const { cost, block, total, heat, wins } = work, n = points.length / 2, k = wins.length;
    let hard = 0, soft = 0, entropy = 0;
    for (let first = 0; first < n; first += BLOCK) {
      const size = Math.min(BLOCK, n - first);
      for (let i = 0; i < size; i++) {
        const at = 2 * (first + i), best = costs(points[at], points[at + 1], hypotheses, cost), low = cost[best];
        play.softminBeforeDivision(cost, block, i * k, rule.softness, low, total, heat, i);
        wins[best]++;
        hard += low;
        soft += low + (rule.softness * heat[i]) / total[i];
        entropy += Math.log(total[i]) + heat[i] / total[i];
        total[i] = 1 / total[i];
      }
      for (let j = 0; j < k; j++) addColumn(work, points, 2 * first, size, j);
    }
    return { hard, soft, entropy };
  }

  /** Add the weights that a hypothesis has in a block to its sums, which stay in registers. */
  function addColumn({ block, total, mass, x, y }, points, first, size, j) {
    const k = mass.length;
    let ofMass = 0, ofX = 0, ofY = 0;
    for (let i = 0, at = j; i < size; i++, at += k) {
      const weight = block[at] * total[i];
      ofMass += weight; ofX += weight * points[first + 2 * i]; ofY += weight * points[first + 2 * i + 1];
    }
    mass[j] += ofMass; x[j] += ofX; y[j] += ofY;
  }

  /** Sum over the winners; what the other hypotheses share follows from the sums over all points. */
  function sumWinners(points, hypotheses, rule, work) {
    const { cost, weights, mass, x, y, wins } = work, k = cost.length, n = points.length / 2;
    let hard = 0, sumX = 0, sumY = 0, squares = 0;
    for (let i = 0; i < points.length; i += 2) {
      const px = points[i], py = points[i + 1], best = costs(px, py, hypotheses, cost);
      hard += cost[best];
      wins[best]++; x[best] += px; y[best] += py;
      sumX += px; sumY += py; squares += px * px + py * py;
    }
    let all = k * squares; // of all costs: |p - h|^2 summed over points without looking at pairs again
    for (let j = 0; j < k; j++) {
      const hx = hypotheses[2 * j], hy = hypotheses[2 * j + 1];
      all += n * (hx * hx + hy * hy) - 2 * (hx * sumX + hy * sumY);
    }
    const entropy = n * rule(cost, weights, 0), first = weights[0], other = k > 1 ? weights[1] : 0;
    for (let j = 0; j < k; j++) {
      mass[j] = first * wins[j] + other * (n - wins[j]);
      x[j] = first * x[j] + other * (sumX - x[j]);
      y[j] = first * y[j] + other * (sumY - y[j]);
    }
    return { hard, soft: first * hard + other * (all - hard), entropy };
  }

  function measures({ mass, wins, unused }, n, distortion, softDistortion, entropy, temperature) {
    let usage = 0, starved = 0; // a warm hypothesis may win no point and still be trained by all of them
    for (let j = 0; j < mass.length; j++) {
      const share = mass[j] / n;
      if (share > 0) usage -= share * Math.log(share);
      unused[j] = wins[j] === 0 && share < 0.5 / mass.length ? 1 : 0;
      starved += unused[j];
    }
    const rate = Math.max(0, usage - entropy) / Math.LN2;
    return { distortion, softDistortion, entropy, freeEnergy: softDistortion - temperature * entropy, rate, starved };
  }

  /** Move each hypothesis towards the weighted mean of the points; one without weight does not move. */
  function move(hypotheses, { mass, x, y }, rate = RATE) {
    for (let j = 0; j < mass.length; j++) {
      if (!(mass[j] > 0)) continue;
      hypotheses[2 * j] += rate * (x[j] / mass[j] - hypotheses[2 * j]);
      hypotheses[2 * j + 1] += rate * (y[j] / mass[j] - hypotheses[2 * j + 1]);
    }
  }

  function push(hypotheses, temperature, random) {
    const size = PUSH * Math.sqrt(temperature);
    for (let j = 0; j < hypotheses.length; j++) hypotheses[j] += size * play.normal(random);
  }

  /** Measures over the steps; every second record is dropped when there are too many, so that old steps remain. */
  class History {
    constructor() { Object.assign(this, { records: [], every: 1, seen: 0 }); }

    add(record) {
      if (this.seen++ % this.every) return;
      this.records.push(record);
      if (this.records.length < MOST_RECORDS) return;
      this.records = this.records.filter((_, place) => place % 2 === 0);
      this.every *= 2;
    }
  }

  /** A simulation of one rule on the points. */
  class Panel {
    constructor(key, start, seed) {
      this.key = key;
      this.hypotheses = Float64Array.from(start);
      this.work = workspace(start.length / 2);
      this.random = play.generator(seed);
      this.history = new History();
      this.measures = null;
      this.milliseconds = 0; // of the last look
    }

    look(points, parameters) {
      const begin = performance.now();
      this.temperature = this.key === "annealed" ? parameters.temperature : 0;
      this.measures = sweep(points, this.hypotheses, play.rule(this.key, parameters), this.work, this.temperature);
      this.milliseconds = performance.now() - begin;
      this.changed = true; // until it is drawn
    }

    record(step, temperature) {
      const { distortion, softDistortion, freeEnergy, rate } = this.measures;
      const places = Float32Array.from(this.hypotheses);
      this.history.add({ step, temperature, distortion, softDistortion, freeEnergy, rate, places });
    }

    advance() {
      move(this.hypotheses, this.work);
      if (this.temperature > 0) push(this.hypotheses, this.temperature, this.random);
    }
  }

  /** Up to three panels from the same start; `parameters` are { temperature, epsilon, n }. */
  class Simulation {
    constructor(points, keys, start, parameters, seed) {
      this.points = points;
      this.step = 0;
      this.panels = keys.map((key) => new Panel(key, start, seed));
      this.look(parameters);
      this.record(parameters);
    }

    look(parameters) { for (const panel of this.panels) panel.look(this.points, parameters); }

    record({ temperature }) { for (const panel of this.panels) panel.record(this.step, temperature); }

    /**
     * Move by the weights of the last look, then look with the parameters of the next step. Panels do not depend on each
     * other: those that would take longer than `milliseconds` wait for the next call. Return whether the step is done.
     */
    advance(parameters, milliseconds = Infinity) {
      this.waiting ??= [...this.panels];
      let spent = 0;
      do {
        const panel = this.waiting.shift();
        panel.advance();
        panel.look(this.points, parameters);
        panel.record(this.step + 1, parameters.temperature);
        spent += panel.milliseconds;
      } while (this.waiting.length && spent + this.waiting[0].milliseconds < milliseconds);
      if (this.waiting.length) return false;
      this.waiting = null;
      this.step++;
      return true;
    }
  }

  Object.assign(play, { workspace, sweep, move, Simulation });
})((globalThis.torchmclPlay ??= {}));
