// The part of the page with networks: the same pairs, the same first weights, two rules.
(function (play) {
  "use strict";

  const PAIRS = 256;
  const HIDDEN = [32, 32];
  const RATE = 0.01;
  const STEPS = 600; // of the cooling; then STEPS / 3 more at T = 0
  const HOTTEST = 1.5;
  const $ = (id) => document.getElementById(id);

  class NetworkPage {
    constructor() {
      this.grid = Float64Array.from({ length: 81 }, (_, i) => -1.2 + (2.4 * i) / 80);
      this.playing = false;
      for (const id of ["net-data", "net-k"]) $(id).addEventListener("change", () => this.restart());
      $("net-restart").addEventListener("click", () => this.restart());
      $("net-play").addEventListener("click", () => this.toggle());
      $("net-step").addEventListener("click", () => { this.playing = false; this.advance(); this.show(); });
      $("net-heat").addEventListener("input", () => this._byHand(HOTTEST * ($("net-heat").value / 1000) ** 2));
      this.restart();
    }

    restart() {
      const k = Math.min(Math.max(Math.round(Number($("net-k").value)) || 1, 1), 12);
      $("net-k").value = k;
      this.pairs = play.pairs($("net-data").value, PAIRS, 1);
      this.critical = play.largestLocalCriticalTemperature(this.pairs);
      this.cooling = play.schedules.linear(HOTTEST, 0, STEPS);
      this.step = 0;
      this.heat = HOTTEST;
      this.networks = ["wta", "annealed"].map((key) => ({ key, network: new play.Network(k, HIDDEN, 3), wins: new Float64Array(k).fill(1) }));
      this.show();
    }

    toggle() {
      if (!this.playing && this.cooling && this.step >= (4 * STEPS) / 3) this.restart();
      this.playing = !this.playing;
      this.show();
    }

    _byHand(heat) {
      Object.assign(this, { cooling: null, heat, playing: true });
      this.show();
    }

    advance() {
      if (this.cooling) this.heat = this.cooling(this.step);
      for (const one of this.networks) {
        const rule = play.rule(one.key, { temperature: this.heat * this.critical });
        Object.assign(one, one.network.train(this.pairs, rule, RATE));
      }
      this.step++;
      if (this.cooling && this.step >= (4 * STEPS) / 3) this.playing = false;
    }

    frame() {
      if (!this.playing) return;
      this.advance();
      this.show();
    }

    show() {
      for (const { key, network, wins, distortion } of this.networks) {
        const canvas = $(`net-${key}`), unused = [...wins].filter((count) => count === 0).length;
        play.drawNetwork(canvas, this.pairs, this.grid, network.forward(this.grid), wins);
        const measured = distortion === undefined ? "not trained yet" : `distortion ${distortion.toPrecision(3)}`;
        const text = `${play.RULES[key]}: ${measured}${unused ? `, ${unused} win nothing` : ""}, step ${this.step}`;
        $(`net-${key}-text`).textContent = text;
        canvas.ariaLabel = `${wins.length} answers over the input. ${text}.`;
      }
      $("net-play").textContent = this.playing ? "Stop" : "Train";
      play.showDial("net-heat", "net-mark", "net-heat-text", this.heat, HOTTEST, this.critical);
    }
  }

  Object.assign(play, { NetworkPage });
})((globalThis.torchmclPlay ??= {}));
