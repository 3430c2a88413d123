// The panels of the page: their elements, and drawing one's own points on them with a pointer or with keys.
(function (play) {
  "use strict";

  const SPRAY = 5; // points for each move of the pointer
  const WIDTH = 0.03;
  const MOST_OWN = 3000;

  const element = (tag, properties = {}, children = []) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  /** One figure: a choice of rule, the picture, and the bars of usage. `changed` is called with the new rule. */
  class PanelView {
    constructor(place, changed) {
      this.choice = element("select", { ariaLabel: `Rule of panel ${place + 1}` },
        Object.entries(play.RULES).map(([value, text]) => element("option", { value, textContent: text })));
      this.choice.addEventListener("change", () => changed(place, this.choice.value));
      this.note = element("span", { className: "note" });
      this.canvas = element("canvas", { className: "picture" });
      this.bars = element("canvas", { className: "usage" });
      for (const canvas of [this.canvas, this.bars]) canvas.setAttribute("role", "img");
      this.figure = element("figure", {}, [
        element("figcaption", {}, [this.choice, this.note]), this.canvas, this.bars,
        element("p", { className: "note", textContent: "Share of each hypothesis, largest first; line: equal shares" }),
      ]);
      this.picture = new play.Picture(this.canvas);
    }

    draw(points, panel, options) { this.picture.draw(points, panel, options); }

    describe(panel, text) {
      play.drawUsage(this.bars, panel);
      this.choice.value = panel.key;
      const n = panel.work.wins.length, { starved, distortion } = panel.measures;
      const note = `distortion ${distortion.toPrecision(3)}`;
      if (this.note.textContent !== note) this.note.textContent = note;
      if (text) this.canvas.ariaLabel = text;
      this.bars.ariaLabel = `Share of each hypothesis, largest first: ${n - starved} of ${n} are used.`;
    }
  }

  /** Adds points to `own` with the pointer or the keys; calls `changed` with all points. */
  class Pencil {
    constructor(changed) {
      Object.assign(this, { changed, on: false, own: [], cursor: null, random: play.generator(5) });
    }

    attach(canvas) {
      const follow = (event) => { if (this.on && event.buttons & 1) this._spray(this._place(canvas, event)); };
      canvas.addEventListener("pointerdown", (event) => {
        if (!this.on) return;
        canvas.setPointerCapture(event.pointerId);
        follow(event);
      });
      canvas.addEventListener("pointermove", follow);
      canvas.addEventListener("keydown", (event) => this._key(event));
    }

    _place(canvas, event) {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * 2.1 - 1.05, 1.05 - ((event.clientY - box.top) / box.height) * 2.1];
    }

    _spray([x, y]) {
      const inside = (value) => Math.min(Math.max(value, -1), 1);
      for (let i = 0; i < SPRAY && this.own.length < 2 * MOST_OWN; i++) {
        this.own.push(inside(x + WIDTH * play.normal(this.random)), inside(y + WIDTH * play.normal(this.random)));
      }
      this.changed(Float64Array.from(this.own));
    }

    _key(event) {
      if (!this.on) return;
      const moves = { ArrowLeft: [-0.05, 0], ArrowRight: [0.05, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] };
      const [x, y] = this.cursor ?? [0, 0], by = moves[event.key];
      if (by) this.cursor = [Math.min(Math.max(x + by[0], -1), 1), Math.min(Math.max(y + by[1], -1), 1)];
      else if (event.key === "Enter") this._spray(this.cursor ?? [0, 0]);
      else return;
      event.preventDefault();
      event.stopPropagation();
      this.changed(Float64Array.from(this.own));
    }
  }

  Object.assign(play, { PanelView, Pencil, element });
})((globalThis.torchmclPlay ??= {}));
