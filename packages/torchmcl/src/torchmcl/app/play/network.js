// A small network with several answers: layers with ReLU, trained by Adam, as torchmcl.nn.MultiHypothesisMLP.
(function (play) {
  "use strict";

  /** A linear layer over rows of a batch, with its gradients and Adam's moments in typed arrays. */
  class Linear {
    constructor(inputs, outputs, random) {
      Object.assign(this, { inputs, outputs });
      const bound = 1 / Math.sqrt(inputs); // PyTorch's initial values
      const fresh = (size) => Float64Array.from({ length: size }, () => bound * (2 * random() - 1));
      this.tensors = [fresh(outputs * inputs), fresh(outputs)].map((value) => ({
        value, gradient: new Float64Array(value.length), mean: new Float64Array(value.length),
        square: new Float64Array(value.length),
      }));
    }

    forward(input, rows) {
      const { inputs, outputs } = this, [{ value: weight }, { value: bias }] = this.tensors;
      const output = this._kept("output", rows * outputs);
      this.input = input;
      for (let i = 0; i < rows; i++) {
        for (let o = 0; o < outputs; o++) {
          let sum = bias[o];
          for (let j = 0; j < inputs; j++) sum += weight[o * inputs + j] * input[i * inputs + j];
          output[i * outputs + o] = sum;
        }
      }
      return output;
    }

    /** Keep the gradients of weight and bias, and return that of the input. */
    backward(gradient, rows) {
      const { inputs, outputs, input } = this, [weight, bias] = this.tensors;
      const below = this._kept("below", rows * inputs).fill(0);
      weight.gradient.fill(0);
      bias.gradient.fill(0);
      for (let i = 0; i < rows; i++) {
        for (let o = 0; o < outputs; o++) {
          const g = gradient[i * outputs + o];
          if (g === 0) continue;
          bias.gradient[o] += g;
          for (let j = 0; j < inputs; j++) {
            weight.gradient[o * inputs + j] += g * input[i * inputs + j];
            below[i * inputs + j] += g * weight.value[o * inputs + j];
          }
        }
      }
      return below;
    }

    /** Arrays are kept between steps: new ones in each frame would trigger garbage collection. */
    _kept(name, size) {
      if (this[name]?.length !== size) this[name] = new Float64Array(size);
      return this[name];
    }
  }

  function adam({ value, gradient, mean, square }, step, rate) {
    const [beta1, beta2, epsilon] = [0.9, 0.999, 1e-8];
    const size = rate / (1 - beta1 ** step), spread = Math.sqrt(1 - beta2 ** step);
    for (let i = 0; i < value.length; i++) {
      mean[i] += (1 - beta1) * (gradient[i] - mean[i]);
      square[i] = beta2 * square[i] + (1 - beta2) * gradient[i] * gradient[i];
      value[i] -= (size * mean[i]) / (Math.sqrt(square[i]) / spread + epsilon);
    }
  }

  class Network {
    constructor(hypotheses, hidden, seed) {
      const random = play.generator(seed), sizes = [1, ...hidden, hypotheses];
      this.layers = hidden.map((_, place) => new Linear(sizes[place], sizes[place + 1], random));
      this.layers.push(new Linear(sizes.at(-2), hypotheses, random));
      Object.assign(this, { hypotheses, step: 0 });
    }

    /** Return the answers [rows, hypotheses] to inputs [rows]. */
    forward(x) {
      let flow = x;
      for (const layer of this.layers) {
        flow = layer.forward(flow, x.length);
        if (layer !== this.layers.at(-1)) for (let i = 0; i < flow.length; i++) if (flow[i] < 0) flow[i] = 0;
      }
      return flow;
    }

    /** Do one step of Adam on pairs under a rule; return the loss before it and how often each answer won. */
    train({ x, y }, rule, rate) {
      const n = x.length, k = this.hypotheses, answers = this.forward(x), gradient = new Float64Array(n * k);
      const cost = new Float64Array(k), weights = new Float64Array(k), wins = new Float64Array(k);
      let loss = 0, distortion = 0;
      for (let i = 0; i < n; i++) {
        let best = 0;
        for (let j = 0; j < k; j++) {
          cost[j] = (answers[i * k + j] - y[i]) ** 2;
          if (cost[j] < cost[best]) best = j;
        }
        rule(cost, weights);
        wins[best]++;
        distortion += cost[best] / n;
        for (let j = 0; j < k; j++) {
          loss += (weights[j] * cost[j]) / n;
          gradient[i * k + j] = (2 * weights[j] * (answers[i * k + j] - y[i])) / n;
        }
      }
      this._descend(gradient, n, rate);
      return { loss, distortion, wins };
    }

    _descend(gradient, rows, rate) {
      this.step++;
      for (const layer of [...this.layers].reverse()) {
        gradient = layer.backward(gradient, rows);
        // ReLU: clipped units, 0 in the input of the layer, have no gradient.
        if (layer !== this.layers[0]) for (let i = 0; i < gradient.length; i++) if (layer.input[i] <= 0) gradient[i] = 0;
        for (const tensor of layer.tensors) adam(tensor, this.step, rate);
      }
    }
  }

  /** Return twice the largest variance of y in bins of x: above it merged answers are stable at every input. */
  function largestLocalCriticalTemperature({ x, y }, bins = 20) {
    const sums = Array.from({ length: bins }, () => [0, 0, 0]);
    for (let i = 0; i < x.length; i++) {
      const bin = sums[Math.min(bins - 1, Math.max(0, Math.floor(((x[i] + 1) / 2) * bins)))];
      bin[0]++; bin[1] += y[i]; bin[2] += y[i] * y[i];
    }
    const variances = sums.map(([n, sum, squares]) => (n > 1 ? squares / n - (sum / n) ** 2 : 0));
    return 2 * Math.max(...variances);
  }

  Object.assign(play, { Linear, Network, largestLocalCriticalTemperature });
})((globalThis.torchmclPlay ??= {}));
