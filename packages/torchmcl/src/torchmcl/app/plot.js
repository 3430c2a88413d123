for (const plot of document.querySelectorAll(".plot")) {
  const { axes, every } = JSON.parse(plot.dataset.plot), picture = plot.querySelector("img");
  const make = (name) => plot.appendChild(Object.assign(document.createElement("span"), { className: name, hidden: true }));
  const dot = make("dot"), value = make("value"), points = [];
  const share = (v, a, b, log) => log ? Math.log(v / a) / Math.log(b / a) : (v - a) / (b - a);
  for (const axis of axes) {
    const [x0, x1, y0, y1] = axis.limits, [left, right, low, high] = axis.box;
    for (const { label, x, y } of axis.series) x.forEach((at, i) => {
      const a = share(at, x0, x1, axis.log[0]), b = share(y[i], y0, y1, axis.log[1]);
      if (at === null || y[i] === null || !(a >= -.01 && a <= 1.01 && b >= -.01 && b <= 1.01)) return;
      const name = label ? label + ": " : "";
      points.push([left + a * (right - left), low + b * (high - low), `${name}${axis.x || "x"} ${at}, ${axis.y || "y"} ${y[i]}`]);
    });
  }
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    let nearest = null, least = 30 ** 2;
    for (const point of points) {
      const d = (point[0] * box.width - event.clientX + box.left) ** 2 + (point[1] * box.height - event.clientY + box.top) ** 2;
      if (d < least) { least = d; nearest = point; }
    }
    dot.hidden = value.hidden = !nearest;
    if (!nearest) return;
    value.textContent = nearest[2];
    const half = value.offsetWidth / 2, x = nearest[0] * box.width;
    for (const part of [dot, value]) part.style.top = `${nearest[1] * box.height}px`;
    dot.style.left = `${x}px`;
    value.style.left = `${Math.min(Math.max(x, half), Math.max(box.width - half, half))}px`;
  });
  picture.addEventListener("pointerleave", () => { dot.hidden = value.hidden = true; });
  const cell = (text) => /[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : text ?? "";
  const rows = [["panel", "series", "x axis", "y axis", "x", "y"]];
  axes.forEach((axis, place) => axis.series.forEach(({ label, x, y }) => x.forEach((at, i) =>
    rows.push([axis.title || place + 1, label, axis.x, axis.y, at, y[i]]))));
  const link = plot.querySelector("a");
  link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(rows.map((row) => row.map(cell).join(",")).join("\n") + "\n");
  if (every > 1) link.after(` (1 of ${every} points)`);
}
