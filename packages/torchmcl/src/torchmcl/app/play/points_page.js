// The part of the page with points: controls, simulation, pictures, charts and text.
(function (play) {
  "use strict";

  const HOTTEST = 1.5; // of the local critical temperature; the dial is quadratic, to be finer where it is cold
  const AFTER = 80; // steps at T = 0 before a cooling stops by itself
  const MILLISECONDS = 8; // of a frame of 16 for the steps; the rest is for drawing
  const EVERY = 6; // frames between two updates of text and charts: ten a second are enough to read
  const $ = (id) => document.getElementById(id);

  class PointsPage {
    constructor(changed) {
      Object.assign(this, { changed, playing: false, frames: 0, views: [], state: play.defaultState() });
      this.pencil = new play.Pencil((own) => this.set({ data: own.length ? "own" : this.state.data, own }));
      for (const id of ["data", "start", "cooling"]) this._on(id, "change", (field) => ({ [id]: field.value }));
      for (const id of ["points", "steps"]) this._on(id, "change", (field) => ({ [id]: Number(field.value) }));
      for (const id of ["epsilon", "n"]) this._on(id, "input", (field) => ({ [id]: Number(field.value) }));
      for (const id of ["cells", "paths"]) this._on(id, "change", (field) => ({ [id]: field.checked }));
      this._on("k", "change", (field) => ({ k: Math.min(Math.max(Math.round(Number(field.value)) || 1, 1), 50) }));
      this._on("panel-count", "change", (field) => ({ rules: this._rules(Number(field.value)) }));
      $("heat").addEventListener("input", () => this.heatTo(HOTTEST * ($("heat").value / 1000) ** 2));
      $("play").addEventListener("click", () => this.toggle());
      $("step").addEventListener("click", () => this.single());
      $("restart").addEventListener("click", () => this.restart());
      $("new-start").addEventListener("click", () => this.newStart());
      $("draw").addEventListener("click", () => this.draw(!this.pencil.on));
      $("clear").addEventListener("click", () => this._clear());
      $("csv").addEventListener("click", () => {
        $("csv").href = `data:text/csv;charset=utf-8,${encodeURIComponent(play.historyTable(this.simulation))}`;
      });
    }

    _on(id, event, read) { $(id).addEventListener(event, () => this.set(read($(id)))); }

    _rules(count) {
      const unused = Object.keys(play.RULES).filter((key) => !this.state.rules.includes(key));
      return [...this.state.rules, ...unused].slice(0, count);
    }

    /** Set the complete state, from a link or a step of the story. */
    load(state) {
      this.state = state;
      this.playing = false;
      this.pencil.own = [...state.own];
      this.draw(false);
      this._rebuild();
      this.announce();
    }

    /** Change part of the state: the simulation restarts if points or hypotheses change. */
    set(change) {
      Object.assign(this.state, change);
      if (this.state.data === "own" && !this.state.own.length) {
        this.draw(true);
        $("status").textContent = "Draw points in a picture with the mouse, a finger, or arrow keys and Enter.";
      }
      const light = ["epsilon", "n", "cells", "paths", "heat"];
      if (Object.keys(change).every((name) => light.includes(name))) this._refresh();
      else this._rebuild();
      this.changed(this.state);
    }

    _points() {
      const { data, own, points, seed } = this.state;
      if (data !== "own") return play.points(data, points, seed);
      return own.length ? own : Float64Array.of(0, 0);
    }

    _rebuild() {
      const { state } = this, points = this._points(), key = `${state.data} ${points.length} ${state.seed} ${state.k}`;
      this.critical = play.localCriticalTemperature(points);
      if (key !== this.curveKey) this.curve = new play.RateCurve(points, Math.log2(state.k) + 0.3);
      this.curveKey = key;
      this.cooling = play.cooling(state.cooling, HOTTEST * this.critical, state.steps);
      if (this.cooling) state.heat = HOTTEST;
      const start = play.start(state.start, state.k, state.seed, points);
      this.simulation = new play.Simulation(points, state.rules, start, this._parameters(), state.seed);
      this._views();
      this._refresh();
    }

    _views() {
      const wanted = this.state.rules.length;
      if (this.views.length !== wanted) {
        const chosen = (place, key) => this.set({ rules: this.state.rules.map((old, i) => (i === place ? key : old)) });
        this.views = Array.from({ length: wanted }, (_, place) => new play.PanelView(place, chosen));
        for (const view of this.views) this.pencil.attach(view.canvas);
        $("panels").replaceChildren(...this.views.map((view) => view.figure));
        this.draw(this.pencil.on);
      }
      for (const view of this.views) view.picture.reset();
    }

    _parameters() {
      const { heat, epsilon, n, k } = this.state;
      return { temperature: heat * this.critical, epsilon, n: Math.min(n, k) };
    }

    _refresh() {
      this.simulation.look(this._parameters());
      this.show();
    }

    repaint() {
      for (const view of this.views) view.picture.reset();
      this.show();
    }

    advance(milliseconds) {
      if (this.cooling) this.state.heat = this.cooling(this.simulation.step + 1) / (this.critical || 1);
      this.simulation.advance(this._parameters(), milliseconds);
      if (this.cooling && this.simulation.step >= this.state.steps + AFTER) this.stop();
    }

    /** Called for each frame of the screen. */
    frame() {
      this.frames++;
      if (!this.curve.done) {
        this.curve.advance(this.playing ? 2 : 10);
        if (!this.playing && (this.frames % 10 === 0 || this.curve.done)) this.show();
      }
      if (!this.playing) return;
      this.advance(MILLISECONDS);
      // Text and charts in different frames, so that no frame is long.
      const turn = this.frames % EVERY;
      if (this.playing) this.show(turn === 0, turn === EVERY / 2, false);
    }

    toggle() {
      if (this.playing) return this.stop();
      if (this.cooling && this.simulation.step >= this.state.steps + AFTER) this._rebuild();
      this.playing = true;
      $("status").textContent = "Playing.";
      this.show();
      return undefined;
    }

    stop() {
      this.playing = false;
      this.show();
      this.announce();
      this.changed(this.state);
    }

    single() {
      this.playing = false;
      this.advance(); // ends a step that a frame has begun, or takes a whole one
      this.show();
      this.announce();
    }

    restart() {
      this._rebuild();
      this.announce();
    }

    newStart() { this.set({ seed: (this.state.seed % 9999) + 1 }); }

    /** The reader moved the dial: the schedule ends, and hypotheses follow at once. */
    heatTo(heat) {
      this.cooling = null;
      this.playing = true;
      this.set({ cooling: "hand", heat: Math.min(Math.max(heat, 0), HOTTEST) });
    }

    nudge(by) { this.heatTo(HOTTEST * Math.min(Math.max(Math.sqrt(this.state.heat / HOTTEST) + by, 0), 1) ** 2); }

    draw(on) {
      this.pencil.on = on;
      this.pencil.cursor = null;
      $("draw").setAttribute("aria-pressed", on);
      for (const { canvas } of this.views) {
        canvas.classList.toggle("drawn", on);
        if (on) canvas.tabIndex = 0;
        else canvas.removeAttribute("tabindex");
      }
    }

    _clear() {
      this.pencil.own = [];
      this.set({ own: new Float64Array(0), data: this.state.data });
    }

    show(withText = true, withCharts = true, all = true) {
      const { state, simulation, pencil } = this;
      const options = { showCells: state.cells, showPaths: state.paths, cursor: pencil.on ? pencil.cursor : null };
      this.views.forEach((view, place) => {
        const panel = simulation.panels[place];
        if (all || panel.changed) view.draw(simulation.points, panel, options);
        panel.changed = false;
      });
      if (withText) this._showText();
      if (withCharts) play.showCharts(simulation, this.curve, state.k, this.critical);
    }

    _showText() {
      const { state, simulation } = this;
      play.showDial("heat", "mark", "heat-text", state.heat, HOTTEST, this.critical);
      this.views.forEach((view, place) => view.describe(simulation.panels[place]));
      play.showControls(state, this.playing);
      play.showMeasures(simulation, this.curve, state.k);
    }

    /** Describe the pictures in words, once a simulation has come to rest. */
    announce() {
      const texts = this.simulation.panels.map((panel) => play.panelText(panel));
      this.views.forEach((view, place) => view.describe(this.simulation.panels[place], texts[place]));
      $("status").textContent = `Step ${this.simulation.step}. ${texts.join(" ")}`;
    }
  }

  Object.assign(play, { PointsPage });
})((globalThis.torchmclPlay ??= {}));
