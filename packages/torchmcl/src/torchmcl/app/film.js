const part = (suffix) => document.getElementById("film" + suffix);
const canvas = part(""), context = canvas.getContext("2d");
canvas.film = film; // to look at from a console
const slider = part("-frame"), button = part("-play");
const label = part("-label"), side = canvas.width / film.methods.length;
const head = 50; // pixels for the names of the methods
const place = (x, y, panel) => [panel * side + (x + 1) / 2 * side, head + (1 - y) / 2 * (canvas.height - head)];
function draw(frame) {
  context.fillStyle = "#fff"; context.fillRect(0, 0, canvas.width, canvas.height);
  film.methods.forEach((method, panel) => {
    context.save(); context.beginPath();
    context.rect(panel * side + 2, head, side - 4, canvas.height - head); context.clip();
    context.fillStyle = "rgba(110,150,112,0.35)";
    for (const [x, y] of film.points) { const [px, py] = place(x, y, panel); context.fillRect(px - 1.5, py - 1.5, 3, 3); }
    const hypotheses = method.frames[frame], top = Math.max(...hypotheses.map(h => h[2]), 1e-6);
    for (const [x, y, score] of hypotheses) {
      const [px, py] = place(x, y, panel);
      context.beginPath(); context.arc(px, py, 7, 0, 2 * Math.PI);
      context.fillStyle = `rgba(0,72,153,${0.12 + 0.88 * score / top})`; context.fill();
      context.strokeStyle = "#00345f"; context.lineWidth = 1; context.stroke();
    }
    context.restore();
    // A phone shows the picture at a quarter of its size, so names are larger there.
    const letters = Math.min(36, Math.max(20, 11 * canvas.width / (canvas.clientWidth || canvas.width)));
    context.fillStyle = "#1c2430"; context.font = `${letters}px system-ui, sans-serif`; context.textAlign = "center";
    const heat = method.annealed ? `, T = ${method.temperature[frame].toPrecision(2)}` : "";
    context.fillText(method.label + heat, (panel + 0.5) * side, 36);
    if (panel) { context.strokeStyle = "#d9dee5"; context.beginPath();
      context.moveTo(panel * side, 0); context.lineTo(panel * side, canvas.height); context.stroke(); }
  });
  label.textContent = `epoch ${film.epochs[frame]}`; slider.value = frame;
}
let frame = 0, playing = true, hold = 0;
function tick() {
  if (playing) {
    draw(frame);
    if (frame < film.epochs.length - 1) frame += 1;
    else if (++hold > 15) { frame = 0; hold = 0; }
  }
}
slider.addEventListener("input", () => { playing = false; button.textContent = "Play"; frame = +slider.value; draw(frame); });
button.addEventListener("click", () => { playing = !playing; button.textContent = playing ? "Pause" : "Play"; });
draw(film.epochs.length - 1); setInterval(tick, 120);
