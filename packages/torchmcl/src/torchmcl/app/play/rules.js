// Assignment rules and schedules: the same definitions as torchmcl.rules.winners and torchmcl.schedules.
(function (play) {
  "use strict";

  /** Return the index of the first cheapest hypothesis. */
  function winner(cost) {
    let best = 0;
    for (let k = 1; k < cost.length; k++) if (cost[k] < cost[best]) best = k;
    return best;
  }

  // A rule writes the weights of one row of costs and returns their entropy in nats. `best`, the place of the first
  // cheapest, is known to most callers. A rule with an `epsilon` needs the winner only, which makes sums over rows quick.

  const entropyOf = (p) => (p > 0 ? -p * Math.log(p) : 0);

  const wta = () => relaxed(0);

  function relaxed(epsilon) {
    const assign = (cost, weights, best = winner(cost)) => {
      const others = cost.length - 1, given = others ? epsilon : 0;
      weights.fill(given / Math.max(others, 1));
      weights[best] = 1 - given;
      return entropyOf(1 - given) + others * entropyOf(given / Math.max(others, 1));
    };
    return Object.assign(assign, { epsilon });
  }

  function annealed(temperature) {
    if (temperature <= 0) return wta();
    const assign = (cost, weights, best = winner(cost)) => softmin(cost, weights, temperature, cost[best]);
    return Object.assign(assign, { softness: temperature });
  }

  /**
   * Write e^(-(cost - lowest) / T) of a row into `into` from `offset` on, their sum into total[place], and the sum that is
   * weighted by (cost - lowest) / T into heat[place]. e^-x is a polynomial of x / 32, squared five times: no table, a third
   * of the time of Math.exp, and an absolute error below 1e-8.
   */
  function softminBeforeDivision(cost, into, offset, temperature, lowest, total, heat, place) {
    const scale = 1 / (32 * temperature), n = cost.length;
    let sum = 0, weighted = 0;
    for (let k = 0; k < n; k++) {
      // Beyond e^-45 nothing counts beside a sum that is at least 1, and the polynomial ends; a branch would be slower.
      const r = Math.min((cost[k] - lowest) * scale, 1.4), s = r * r;
      // 1/6, 1/24 and 1/120: divisions, and constants from outside of the function, would take most of the time.
      let weight = 1 - r + s * (0.5 - r * 0.16666666666666666 + s * (0.041666666666666664 - r * 0.008333333333333333));
      weight *= weight; weight *= weight; weight *= weight; weight *= weight; weight *= weight;
      sum += weight;
      weighted += weight * r;
      into[offset + k] = weight;
    }
    total[place] = sum;
    heat[place] = 32 * weighted;
  }

  const one = new Float64Array(2);

  function softmin(cost, weights, temperature, lowest) {
    softminBeforeDivision(cost, weights, 0, temperature, lowest, one, one.subarray(1), 0);
    const [total, heat] = one;
    for (let k = 0; k < weights.length; k++) weights[k] /= total;
    return Math.log(total) + heat / total;
  }

  function topN(n) {
    return (cost, weights) => {
      const count = Math.min(Math.max(Math.floor(n + 0.5), 1), cost.length);
      weights.fill(0);
      for (const k of cheapest(cost, count)) weights[k] = 1 / count;
      return Math.log(count);
    };
  }

  let places = new Int32Array(64);

  /** Return the indices of the `count` cheapest, equal costs in order, by insertion sort: rows are short. */
  function cheapest(cost, count) {
    if (places.length < count) places = new Int32Array(count);
    let kept = 0;
    for (let k = 0; k < cost.length; k++) {
      if (kept === count && cost[k] >= cost[places[kept - 1]]) continue;
      let at = kept < count ? kept++ : kept - 1;
      for (; at > 0 && cost[places[at - 1]] > cost[k]; at--) places[at] = places[at - 1];
      places[at] = k;
    }
    return places.subarray(0, kept);
  }

  /** Return a rule by its key, with the parameters that it needs. */
  function rule(key, { temperature, epsilon, n }) {
    if (key === "annealed") return annealed(temperature);
    if (key === "relaxed") return relaxed(epsilon);
    return key === "top" ? topN(n) : wta();
  }

  const share = (step, steps) => Math.min(Math.max(step / steps, 0), 1);
  const schedules = {
    constant: (value) => () => value,
    linear: (start, end, steps) => (step) => start + share(step, steps) * (end - start),
    cosine: (start, end, steps) => (step) => start + ((1 - Math.cos(Math.PI * share(step, steps))) / 2) * (end - start),
    exponential: (start, decay, cutoff = 0) => (step) => {
      const value = step > 0 ? start * decay ** step : start;
      return value >= cutoff ? value : 0;
    },
  };

  /** Return a schedule from `start` to 0 in `steps`, by its key; null where the reader sets the temperature. */
  function cooling(key, start, steps) {
    if (key === "linear" || key === "cosine") return schedules[key](start, 0, steps);
    const last = 1e-3; // of the start: colder than any split that a screen can show
    return key === "exponential" ? schedules.exponential(start, last ** (1 / steps), 1.0001 * last * start) : null;
  }

  Object.assign(play, { wta, relaxed, annealed, topN, rule, softminBeforeDivision, schedules, cooling });
})((globalThis.torchmclPlay ??= {}));
