// Local critical temperature, distinct places and rate-distortion, as in torchmcl.theory.
(function (play) {
  "use strict";

  /** Return [xx, xy, yy] of points [x, y, x, y, ...], divided by their number. */
  function covariance(points) {
    const n = points.length / 2;
    let mx = 0, my = 0, xx = 0, xy = 0, yy = 0;
    for (let i = 0; i < n; i++) { mx += points[2 * i] / n; my += points[2 * i + 1] / n; }
    for (let i = 0; i < n; i++) {
      const dx = points[2 * i] - mx, dy = points[2 * i + 1] - my;
      xx += dx * dx; xy += dx * dy; yy += dy * dy;
    }
    return [xx / n, xy / n, yy / n];
  }

  const largestEigenvalue = ([xx, xy, yy]) => (xx + yy) / 2 + Math.hypot((xx - yy) / 2, xy);

  /** Return twice the largest eigenvalue of the covariance: above it hypotheses at the mean are stable. */
  const localCriticalTemperature = (points) => (points.length ? 2 * largestEigenvalue(covariance(points)) : 0);

  /** Return how many places the hypotheses occupy, counting those within 0.01, or a tenth of sqrt(T), once. */
  function distinctPlaces(hypotheses, temperature) {
    const reach = Math.max(1e-4, 0.01 * temperature), kept = [];
    for (let k = 0; k < hypotheses.length; k += 2) {
      const near = (j) => (hypotheses[j] - hypotheses[k]) ** 2 + (hypotheses[j + 1] - hypotheses[k + 1]) ** 2 <= reach;
      if (!kept.some(near)) kept.push(k);
    }
    return kept.length;
  }

  function squaredDistances(sources, places) {
    const n = sources.length / 2, m = places.length / 2, cost = new Float64Array(n * m);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < m; j++) {
        cost[i * m + j] = (sources[2 * i] - places[2 * j]) ** 2 + (sources[2 * i + 1] - places[2 * j + 1]) ** 2;
      }
    }
    return cost;
  }

  const NEGLIGIBLE = 1e-14; // beside the nearest place, whose entry is 1

  /** Blahut and Arimoto's iteration at one temperature, one update per call: pages must stay responsive. */
  class BlahutArimoto {
    constructor(cost, n, m, temperature) {
      Object.assign(this, { cost, n, m, temperature, gap: Infinity, updates: 0 });
      this.masses = new Float64Array(m).fill(1 / m);
      this.factors = new Float64Array(m);
      // Only the relevant entries of each row are kept: at low temperatures few places matter to a source.
      this.kernel = new Float64Array(n * m);
      this.places = new Int32Array(n * m);
      this.ends = new Int32Array(n);
      let end = 0;
      for (let i = 0; i < n; i++) this.ends[i] = end = this._fillRow(i, end);
    }

    /** Costs count from the lowest of a row, so that no row underflows; the constant cancels. */
    _fillRow(i, end) {
      const { cost, kernel, places, m, temperature } = this;
      let lowest = Infinity;
      for (let j = i * m; j < (i + 1) * m; j++) lowest = Math.min(lowest, cost[j]);
      for (let j = 0; j < m; j++) {
        const entry = Math.exp((lowest - cost[i * m + j]) / temperature);
        if (entry < NEGLIGIBLE) continue;
        kernel[end] = entry;
        places[end++] = j;
      }
      return end;
    }

    update() {
      const { n, m, kernel, places, ends, masses, factors } = this;
      factors.fill(0);
      for (let i = 0, at = 0; i < n; i++) {
        const begin = at, end = ends[i];
        let z = 0;
        for (; at < end; at++) z += masses[places[at]] * kernel[at];
        const inverse = 1 / (z * n);
        for (at = begin; at < end; at++) factors[places[at]] += kernel[at] * inverse;
      }
      let moved = 0, most = 0;
      for (let j = 0; j < m; j++) {
        masses[j] *= factors[j];
        if (masses[j] > 0) moved += masses[j] * Math.log(factors[j]);
        most = Math.max(most, factors[j]);
      }
      this.gap = Math.max(0, Math.log(most) - moved) / Math.LN2;
      this.updates++;
    }

    /** Return { distortion, rate in bits, gap in bits, temperature }. */
    point() {
      const { n, m, kernel, places, ends, masses, cost } = this, used = new Float64Array(m);
      let distortion = 0, information = 0;
      for (let i = 0, at = 0; i < n; i++) {
        const begin = at;
        let z = 0;
        for (; at < ends[i]; at++) z += masses[places[at]] * kernel[at];
        for (at = begin; at < ends[i]; at++) {
          const q = (masses[places[at]] * kernel[at]) / z / n;
          if (!(q > 0)) continue;
          distortion += q * cost[i * m + places[at]];
          information += q * Math.log(q * n);
          used[places[at]] += q;
        }
      }
      for (let j = 0; j < m; j++) if (used[j] > 0) information -= used[j] * Math.log(used[j]);
      return { distortion, rate: Math.max(0, information) / Math.LN2, gap: this.gap, temperature: this.temperature };
    }
  }

  /** Return every n-th point so that at most `most` remain; the points are in random order. */
  function thinned(points, most) {
    const n = points.length / 2, count = Math.min(n, most), kept = new Float64Array(2 * count);
    for (let i = 0; i < count; i++) {
      const from = Math.floor((i * n) / count);
      kept[2 * i] = points[2 * from];
      kept[2 * i + 1] = points[2 * from + 1];
    }
    return kept;
  }

  /** Return the points and a grid around them: answers need not lie on data, as the middle of a ring does not. */
  function reproductions(points, mostPoints, side) {
    const own = thinned(points, mostPoints), grid = [];
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let i = 0; i < points.length; i += 2) {
      left = Math.min(left, points[i]); right = Math.max(right, points[i]);
      low = Math.min(low, points[i + 1]); high = Math.max(high, points[i + 1]);
    }
    for (let a = 0; a < side; a++) {
      for (let b = 0; b < side; b++) {
        grid.push(left + ((right - left) * (a + 0.5)) / side, low + ((high - low) * (b + 0.5)) / side);
      }
    }
    return Float64Array.from([...own, ...grid]);
  }

  /** The curve R(D) of points, from hot to cold, computed a few milliseconds at a time. */
  class RateCurve {
    constructor(points, upToBits, { sources = 400, places = 200, side = 12 } = {}) {
      this.sources = thinned(points, sources);
      this.places = reproductions(this.sources, places, side);
      this.cost = squaredDistances(this.sources, this.places);
      this.upToBits = upToBits;
      this.temperature = 0.95 * localCriticalTemperature(this.sources);
      const [xx, , yy] = covariance(this.sources);
      this.points = [{ distortion: xx + yy, rate: 0, gap: 0 }];
      this.done = !(this.temperature > 1e-9);
    }

    advance(milliseconds) {
      const end = performance.now() + milliseconds;
      while (!this.done && performance.now() < end) {
        const { sources, places, cost, temperature } = this;
        this.run ??= new BlahutArimoto(cost, sources.length / 2, places.length / 2, temperature);
        this.run.update();
        if (this.run.gap < 0.01 || this.run.updates >= 200) this._finishPoint();
      }
    }

    _finishPoint() {
      const found = this.run.point();
      this.points.push(found);
      this.run = null;
      // Closer together at first: just below the local critical temperature the rate rises quickly by a bit.
      this.temperature *= this.points.length < 7 ? 0.82 : 0.62;
      this.done = found.rate > this.upToBits || this.points.length > 20;
    }

    /** Return the smallest distortion at a rate, by interpolation; NaN where the curve is not computed yet. */
    distortionAt(rate) {
      const at = this.points.findIndex((point) => point.rate >= rate);
      if (at < 0) return NaN;
      if (at === 0) return this.points[0].distortion;
      const [a, b] = [this.points[at - 1], this.points[at]];
      return a.distortion + ((rate - a.rate) / Math.max(b.rate - a.rate, 1e-300)) * (b.distortion - a.distortion);
    }
  }

  Object.assign(play, {
    covariance, localCriticalTemperature, distinctPlaces, squaredDistances, BlahutArimoto, RateCurve, thinned,
  });
})((globalThis.torchmclPlay ??= {}));
