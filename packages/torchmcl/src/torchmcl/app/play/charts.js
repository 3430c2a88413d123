// Small line charts with a title, ticks and a legend by line style, for measures over steps and for R(D).
(function (play) {
  "use strict";

  // Lines differ in dashes as well as in colour.
  const DASHES = [[], [7, 4], [2, 3], [12, 3, 3, 3]];

  const ticksOf = (low, high, count) => {
    const rough = (high - low) / count, unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * ([1, 2, 5, 10].find((factor) => factor * unit >= rough) ?? 10);
    const first = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
  };

  const short = (value) => (value === 0 ? "0" : Math.abs(value) < 0.01 ? value.toExponential(0) : String(+value.toPrecision(3)));

  /** Return the range of the finite values of lines along an axis. */
  function range(lines, axis, log) {
    let low = Infinity, high = -Infinity;
    for (const { points } of lines) {
      for (const point of points) {
        const value = point[axis];
        if (!Number.isFinite(value) || (log && value <= 0)) continue;
        low = Math.min(low, value); high = Math.max(high, value);
      }
    }
    if (!(low <= high)) return [log ? 0.1 : 0, 1];
    if (log) return [low / 1.15, high * 1.15];
    return low === high ? [low - 0.5, high + 0.5] : [low, high + 0.03 * (high - low)];
  }

  /**
   * Draw lines { points: [[x, y], ...], colour, dash, mark } into a canvas.
   * `marks` are vertical lines { x, text }; `log` is for y.
   */
  function drawChart(canvas, { lines, marks = [], log = false, xLabel, xRange }) {
    play.fit(canvas, 0.62);
    const context = canvas.getContext("2d"), tones = play.colours(), { width, height } = canvas;
    const scale = width / canvas.clientWidth || 1, font = 12 * scale;
    const box = { left: 46 * scale, right: width - 10 * scale, top: 10 * scale, bottom: height - 34 * scale };
    const [x0, x1] = xRange ?? range(lines, 0, false), [y0, y1] = range(lines, 1, log);
    const level = log ? (y) => Math.log(y / y0) / Math.log(y1 / y0) : (y) => (y - y0) / (y1 - y0);
    const place = (x, y) => [
      box.left + ((x - x0) / (x1 - x0 || 1)) * (box.right - box.left),
      box.bottom - level(y) * (box.bottom - box.top),
    ];
    context.clearRect(0, 0, width, height);
    context.font = `${font}px system-ui, sans-serif`;
    drawAxes(context, { box, place, tones, font, xTicks: ticksOf(x0, x1, 5), xLabel,
      yTicks: log ? logTicks(y0, y1) : ticksOf(y0, y1, 4), x0, y0 });
    for (const mark of marks) drawMark(context, mark, place(mark.x, y1)[0], box, tones, font);
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    context.clip();
    for (const line of lines) drawLine(context, line, place, log, scale);
    context.restore();
    tellValues(canvas, { lines, place, scale, xLabel });
  }

  /** Show the nearest value of a chart at the pointer; later drawings replace the values. */
  function tellValues(canvas, drawn) {
    const known = canvas.drawn !== undefined;
    canvas.drawn = drawn;
    if (known) return;
    const bubble = canvas.parentElement.appendChild(play.element("span", { className: "value", hidden: true }));
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      const found = nearestValue(canvas.drawn, offsetX * canvas.drawn.scale, offsetY * canvas.drawn.scale);
      bubble.hidden = !found;
      if (!found) return;
      bubble.textContent = found.text;
      const half = bubble.offsetWidth / 2, x = found.x / canvas.drawn.scale;
      bubble.style.left = `${Math.min(Math.max(x, half), Math.max(canvas.clientWidth - half, half))}px`;
      bubble.style.top = `${canvas.offsetTop + found.y / canvas.drawn.scale}px`;
    });
    canvas.addEventListener("pointerleave", () => { bubble.hidden = true; });
  }

  function nearestValue({ lines, place, scale, xLabel }, atX, atY) {
    let least = (30 * scale) ** 2, found = null;
    for (const { points, name } of lines) {
      for (const [a, b] of points) {
        const [x, y] = place(a, b), away = (x - atX) ** 2 + (y - atY) ** 2;
        if (away < least) { least = away; found = { x, y, text: `${name}: ${xLabel} ${short(a)}, ${+b.toPrecision(4)}` }; }
      }
    }
    return found;
  }

  function logTicks(low, high) {
    const made = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const factor of high / low > 300 ? [1] : [1, 2, 5]) {
        const value = factor * 10 ** power;
        if (value >= low && value <= high) made.push(value);
      }
    }
    return made;
  }

  function drawAxes(context, { box, place, tones, font, xTicks, yTicks, xLabel, x0, y0 }) {
    context.fillStyle = tones.soft;
    context.strokeStyle = tones.line;
    context.lineWidth = 1;
    context.textAlign = "right";
    for (const value of yTicks) {
      const y = place(x0, value)[1];
      context.beginPath(); context.moveTo(box.left, y); context.lineTo(box.right, y); context.stroke();
      context.fillText(short(value), box.left - font / 3, y + font / 3);
    }
    context.textAlign = "center";
    for (const value of xTicks) context.fillText(short(value), place(value, y0)[0], box.bottom + 1.2 * font);
    context.fillText(xLabel, (box.left + box.right) / 2, box.bottom + 2.5 * font);
  }

  function drawMark(context, { text }, x, box, tones, font) {
    if (!(x >= box.left && x <= box.right)) return;
    const before = x > (box.left + box.right) / 2;
    context.strokeStyle = context.fillStyle = tones.ink;
    context.setLineDash([3, 3]);
    context.beginPath(); context.moveTo(x, box.top); context.lineTo(x, box.bottom); context.stroke();
    context.setLineDash([]);
    context.textAlign = before ? "right" : "left";
    context.fillText(text, x + (before ? -font / 3 : font / 3), box.top + font);
  }

  function drawLine(context, { points, colour, dash = 0, end = true }, place, log, scale) {
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 2 * scale;
    context.setLineDash(DASHES[dash].map((part) => part * scale));
    context.beginPath();
    let last = null;
    for (const [x, y] of points) {
      if (!Number.isFinite(y) || (log && y <= 0)) continue;
      last = place(x, y);
      context.lineTo(...last);
    }
    context.stroke();
    context.setLineDash([]);
    if (!last || !end) return;
    context.beginPath(); context.arc(...last, 3.5 * scale, 0, 2 * Math.PI); context.fill();
  }

  /** Draw a piece of a line for a legend, at twice the size of the page. */
  function drawStroke(context, colour, dash) {
    drawLine(context, { points: [[0, 6], [72, 6]], colour, dash, end: false }, (x, y) => [x, y], false, 2);
  }

  Object.assign(play, { drawChart, drawStroke });
})((globalThis.torchmclPlay ??= {}));
