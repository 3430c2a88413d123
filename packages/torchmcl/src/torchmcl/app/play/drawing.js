// Drawing on canvases: cells, points, paths, hypotheses and small charts. No computation here.
(function (play) {
  "use strict";

  const REACH = 1.05; // the square from -1.05 to 1.05 is seen

  let known = null; // asking for styles in each frame would lay the page out in each frame

  const forgetColours = () => { known = null; };

  /** Return the colours of the page, light or dark; canvases do not follow style sheets by themselves. */
  const colours = () => (known ??= readColours());

  function readColours() {
    const style = getComputedStyle(document.documentElement), read = (name) => style.getPropertyValue(name).trim();
    return { ink: read("--ink"), soft: read("--soft"), line: read("--line"), paper: read("--paper"),
      points: read("--points"), palette: play.palette };
  }

  /** Resize a canvas to the device pixels it covers; return whether the size changed. */
  function fit(canvas, ratio) {
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    const width = Math.max(1, Math.round(canvas.clientWidth * scale)), height = Math.round(width * ratio);
    if (canvas.width === width && canvas.height === height) return false;
    Object.assign(canvas, { width, height });
    return true;
  }

  const layer = (canvas) => Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });

  /** Return the part of a polygon nearer to (ax, ay) than to (bx, by). */
  function nearerPart(polygon, ax, ay, bx, by) {
    const nx = bx - ax, ny = by - ay, limit = (bx * bx + by * by - ax * ax - ay * ay) / 2, kept = [];
    for (let i = 0; i < polygon.length; i++) {
      const [px, py] = polygon[i], [qx, qy] = polygon[(i + 1) % polygon.length];
      const p = nx * px + ny * py - limit, q = nx * qx + ny * qy - limit;
      if (p <= 0) kept.push(polygon[i]);
      if (p < 0 !== q < 0 && p !== q) kept.push([px + ((qx - px) * p) / (p - q), py + ((qy - py) * p) / (p - q)]);
    }
    return kept;
  }

  /** Return the Voronoi cell of each hypothesis inside the square, as polygons; of equal hypotheses only the first has one. */
  function cells(hypotheses) {
    const n = hypotheses.length / 2, square = [[-REACH, -REACH], [REACH, -REACH], [REACH, REACH], [-REACH, REACH]];
    return Array.from({ length: n }, (_, k) => {
      const ax = hypotheses[2 * k], ay = hypotheses[2 * k + 1];
      let polygon = square, radius = farthest(polygon, ax, ay);
      for (let j = 0; j < n && polygon.length; j++) {
        const bx = hypotheses[2 * j], by = hypotheses[2 * j + 1], apart = (bx - ax) ** 2 + (by - ay) ** 2;
        if (j === k || apart > 4 * radius) continue; // too far away to cut the cell
        if (apart === 0) {
          if (j < k) polygon = [];
        } else {
          polygon = nearerPart(polygon, ax, ay, bx, by);
          radius = farthest(polygon, ax, ay);
        }
      }
      return polygon;
    });
  }

  /** Return the largest squared distance of a corner. */
  function farthest(polygon, ax, ay) {
    let found = 0;
    for (const [x, y] of polygon) found = Math.max(found, (x - ax) ** 2 + (y - ay) ** 2);
    return found;
  }

  /** The picture of one panel. Points and paths are kept in a layer: only what moves is drawn in each frame. */
  class Picture {
    constructor(canvas) {
      Object.assign(this, { canvas, context: canvas.getContext("2d", { alpha: false }), drawnSteps: 0 });
    }

    place(x, y) {
      const side = this.canvas.width;
      return [((x + REACH) / (2 * REACH)) * side, ((REACH - y) / (2 * REACH)) * side];
    }

    /** Discard the layer below: the points, the start, the size or the colors changed. */
    reset() { this.below = null; }

    draw(points, panel, { showCells, showPaths, cursor }) {
      const { context } = this, tones = colours(), { history } = panel;
      const stale = this.history !== history || this.shown !== showPaths || history.records.length < this.drawnSteps;
      if (fit(this.canvas, 1) || stale || !this.below) {
        Object.assign(this, { below: this._points(points, tones), history, shown: showPaths, drawnSteps: 1 });
      }
      if (showPaths) this._paths(history.records, tones);
      context.drawImage(this.below, 0, 0);
      if (showCells) this._cells(panel, tones);
      this._hypotheses(panel, tones);
      if (cursor) this._cursor(cursor, tones);
    }

    /** Return an opaque background with the points: a frame only has to copy it. */
    _points(points, tones) {
      const made = layer(this.canvas), context = made.getContext("2d", { alpha: false });
      const size = Math.max(2, made.width / 220);
      context.fillStyle = tones.paper;
      context.fillRect(0, 0, made.width, made.height);
      context.fillStyle = tones.points;
      context.globalAlpha = points.length > 4000 ? 0.45 : 0.7;
      for (let i = 0; i < points.length; i += 2) {
        const [x, y] = this.place(points[i], points[i + 1]);
        context.fillRect(x - size / 2, y - size / 2, size, size);
      }
      return made;
    }

    _cells(panel, tones) {
      const { context } = this;
      context.strokeStyle = tones.soft;
      context.lineWidth = 1;
      cells(panel.hypotheses).forEach((polygon, k) => {
        if (!polygon.length) return;
        context.beginPath();
        for (const [x, y] of polygon) context.lineTo(...this.place(x, y));
        context.closePath();
        context.globalAlpha = 0.16;
        context.fillStyle = tones.palette[k % tones.palette.length];
        context.fill();
        context.globalAlpha = 0.5;
        context.stroke();
      });
      context.globalAlpha = 1;
    }

    /** Add the steps since the last frame to the layer below. */
    _paths(records, tones) {
      const context = this.below.getContext("2d");
      context.lineWidth = Math.max(1, this.canvas.width / 400);
      context.globalAlpha = 0.6;
      for (; this.drawnSteps < records.length; this.drawnSteps++) {
        const [a, b] = [records[this.drawnSteps - 1].places, records[this.drawnSteps].places];
        for (let colour = 0; colour < tones.palette.length; colour++) this._segments(context, a, b, colour, tones);
      }
    }

    /** One stroke for all hypotheses of a color: strokes are slow. */
    _segments(context, a, b, colour, tones) {
      context.strokeStyle = tones.palette[colour];
      context.beginPath();
      for (let k = colour; k < a.length / 2; k += tones.palette.length) {
        context.moveTo(...this.place(a[2 * k], a[2 * k + 1]));
        context.lineTo(...this.place(b[2 * k], b[2 * k + 1]));
      }
      context.stroke();
    }

    /** An unused hypothesis is a cross: its shape, not only its color, distinguishes it. */
    _hypotheses({ hypotheses, work }, tones) {
      const { context } = this, size = Math.max(4, this.canvas.width / 75);
      for (let k = 0; k < hypotheses.length / 2; k++) {
        const [x, y] = this.place(hypotheses[2 * k], hypotheses[2 * k + 1]), starved = work.unused[k] === 1;
        context.lineWidth = Math.max(1.5, size / 4);
        context.strokeStyle = starved ? tones.ink : tones.paper;
        context.beginPath();
        if (starved) {
          context.moveTo(x - size, y - size); context.lineTo(x + size, y + size);
          context.moveTo(x - size, y + size); context.lineTo(x + size, y - size);
        } else {
          context.arc(x, y, size, 0, 2 * Math.PI);
          context.fillStyle = tones.palette[k % tones.palette.length];
          context.fill();
        }
        context.stroke();
      }
    }

    _cursor([x, y], tones) {
      const [px, py] = this.place(x, y), arm = this.canvas.width / 30;
      this.context.strokeStyle = tones.ink;
      this.context.lineWidth = 2;
      this.context.strokeRect(px - arm / 2, py - arm / 2, arm, arm);
    }
  }

  /** The shares of the weights that hypotheses have, largest first, as bars with the even share as a line. */
  function drawUsage(canvas, { work }) {
    fit(canvas, 0.16);
    const context = canvas.getContext("2d"), tones = colours(), { width, height } = canvas, n = work.wins.length;
    const shares = Float64Array.from(work.mass).sort().reverse(), top = Math.max(shares[0], 1e-9);
    context.clearRect(0, 0, width, height);
    context.fillStyle = tones.palette[0];
    const total = shares.reduce((sum, mass) => sum + mass, 0), even = height * (1 - total / n / top);
    shares.forEach((mass, k) => {
      const tall = (height * mass) / top;
      context.fillRect((k * width) / n + 0.5, height - tall, Math.max(1, width / n - 1), tall);
    });
    context.strokeStyle = tones.ink;
    context.setLineDash([4, 4]);
    context.beginPath(); context.moveTo(0, even); context.lineTo(width, even); context.stroke();
    context.setLineDash([]);
  }

  /** Answers of a network over x with the pairs behind them. */
  function drawNetwork(canvas, pairs, grid, answers, wins) {
    fit(canvas, 0.8);
    const context = canvas.getContext("2d"), tones = colours(), { width, height } = canvas, n = wins.length;
    const place = (x, y) => [((x + 1.25) / 2.5) * width, ((1.15 - y) / 2.3) * height], size = Math.max(2, width / 200);
    context.fillStyle = tones.paper;
    context.fillRect(0, 0, width, height);
    context.fillStyle = tones.points;
    pairs.x.forEach((x, i) => {
      const [px, py] = place(x, pairs.y[i]);
      context.fillRect(px - size / 2, py - size / 2, size, size);
    });
    for (let k = 0; k < n; k++) {
      context.strokeStyle = tones.palette[k % tones.palette.length];
      context.lineWidth = width / 150;
      context.setLineDash(wins[k] ? [] : [width / 80, width / 60]); // dashed: wins nothing
      context.beginPath();
      grid.forEach((x, i) => context.lineTo(...place(x, answers[i * n + k])));
      context.stroke();
    }
    context.setLineDash([]);
  }

  Object.assign(play, { Picture, cells, colours, forgetColours, fit, drawUsage, drawNetwork });
})((globalThis.torchmclPlay ??= {}));
