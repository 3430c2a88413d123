// Text, table and charts of the points.
(function (play) {
  "use strict";

  const $ = (id) => document.getElementById(id);
  const DASHES = [0, 1, 3]; // of each panel: two panels may have one rule; dots are the floor
  const digits = (value) => (Number.isFinite(value) ? value.toPrecision(3) : "–");

  /** Place a dial, its mark at the local critical temperature, and its text. */
  function showDial(dial, mark, text, heat, hottest, critical) {
    const relation = heat > 1 ? "above" : "below";
    $(dial).value = Math.round(1000 * Math.sqrt(heat / hottest));
    const words = `T = ${digits(heat * critical)}, ${heat.toFixed(2)} of 2λ = ${digits(critical)}`;
    $(text).textContent = words;
    $(dial).setAttribute("aria-valuetext", `${words}, ${relation} the local critical temperature`);
    // A thumb of 16 pixels keeps the ends of the track free.
    $(mark).style.left = `calc(8px + (100% - 16px) * ${Math.sqrt(1 / hottest)})`;
  }

  function showControls(state, playing) {
    for (const id of ["data", "points", "k", "start", "cooling", "steps", "epsilon", "n"]) {
      if (document.activeElement !== $(id) || $(id).type !== "number") choose($(id), state[id]);
    }
    $("panel-count").value = state.rules.length;
    $("cells").checked = state.cells;
    $("paths").checked = state.paths;
    $("n").max = state.k;
    $("epsilon-text").textContent = ` ${state.epsilon.toFixed(2)}`;
    $("n-text").textContent = ` ${Math.min(state.n, state.k)}`;
    $("epsilon").disabled = !state.rules.includes("relaxed");
    $("n").disabled = !state.rules.includes("top");
    $("points").disabled = state.data === "own";
    $("play").textContent = playing ? "Stop" : "Play";
  }

  /** Set a field; a link may contain a number that is not in the list. */
  function choose(field, value) {
    if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === String(value))) {
      field.append(play.element("option", { value, textContent: value }));
    }
    field.value = value;
  }

  function showMeasures({ panels }, curve, k) {
    const floor = curve.distortionAt(Math.log2(k)), body = $("measures").tBodies[0];
    body.replaceChildren(...panels.map((panel) => {
      const { distortion, rate, freeEnergy, starved } = panel.measures;
      const above = Number.isFinite(floor) ? `${Math.round(100 * (distortion / floor - 1))} %` : curve.done ? "–" : "…";
      const places = play.distinctPlaces(panel.hypotheses, panel.temperature);
      const energy = panel.key === "annealed" ? digits(freeEnergy) : "–";
      const cells = [digits(distortion), above, rate.toFixed(2), energy, places, starved];
      return play.element("tr", {}, [
        play.element("th", { scope: "row", textContent: play.RULES[panel.key] }),
        ...cells.map((text) => play.element("td", { textContent: text })),
      ]);
    }));
  }

  function panelText(panel) {
    const n = panel.work.wins.length, { distortion, starved } = panel.measures;
    const places = play.distinctPlaces(panel.hypotheses, panel.temperature);
    const answers = n === 1 ? "1 hypothesis" : `${n} hypotheses`, where = places === 1 ? "1 place" : `${places} places`;
    return `${play.RULES[panel.key]}: ${answers} at ${where}, ${starved} unused, distortion ${digits(distortion)}.`;
  }

  /** Charts over the steps, with the first split of theory where the temperature went below it. */
  function showCharts({ panels, step }, curve, k, critical) {
    const tones = play.colours(), bits = Math.log2(k), floor = curve.distortionAt(bits), end = Math.max(step, 50);
    const line = (panel, place, x, y) => ({
      points: panel.history.records.map((record) => [record[x], record[y]]), colour: play.methods[panel.key], dash: DASHES[place],
      name: play.RULES[panel.key],
    });
    const records = panels[0].history.records, below = records.find(({ temperature }) => temperature < critical);
    const crossed = below && below !== records[0] && panels.some(({ key }) => key === "annealed");
    const marks = crossed ? [{ x: below.step, text: "T = 2λ" }] : [];
    const least = { points: [[0, floor], [end, floor]], colour: tones.ink, dash: 2, end: false, name: "floor" };
    play.drawChart($("chart-distortion"), {
      lines: [least, ...panels.map((panel, place) => line(panel, place, "step", "distortion"))],
      marks, log: true, xLabel: "step", xRange: [0, end],
    });
    const bound = { points: curve.points.map(({ rate, distortion }) => [rate, distortion]), colour: tones.ink, dash: 2, end: false, name: "floor" };
    play.drawChart($("chart-rate"), {
      lines: [bound, ...panels.map((panel, place) => line(panel, place, "rate", "softDistortion"))],
      marks: [{ x: bits, text: `log2 ${k}` }], log: true, xLabel: "rate, bits", xRange: [0, bits + 0.3],
    });
    const cooled = panels.map((panel, place) => [panel, place]).filter(([panel]) => panel.key === "annealed");
    play.drawChart($("chart-energy"), {
      lines: cooled.map(([panel, place]) => line(panel, place, "step", "freeEnergy")), marks, xLabel: "step", xRange: [0, end],
    });
    describeCharts(panels, floor, cooled.length);
    showLegend(panels);
  }

  function showLegend(panels) {
    const key = panels.map((panel) => panel.key).join();
    if ($("legend").dataset.key === key) return;
    $("legend").dataset.key = key;
    $("legend").replaceChildren(...panels.map((panel, place) => {
      const stroke = play.element("canvas", { className: "stroke", width: 72, height: 12 });
      stroke.setAttribute("aria-hidden", "true");
      play.drawStroke(stroke.getContext("2d"), play.methods[panel.key], DASHES[place]);
      return play.element("span", {}, [stroke, play.RULES[panel.key]]);
    }));
  }

  function describeCharts(panels, floor, cooled) {
    const all = panels.map((panel) => `${play.RULES[panel.key]} ${digits(panel.measures.distortion)}`).join(", ");
    $("chart-distortion").ariaLabel = `Distortion now: ${all}; floor ${digits(floor)}.`;
    const rates = panels.map((panel) => `${play.RULES[panel.key]} ${panel.measures.rate.toFixed(2)} bits`).join(", ");
    $("chart-rate").ariaLabel = `Rate now: ${rates}.`;
    $("chart-energy").ariaLabel = cooled ? "Free energy of the annealed panels over the steps." : "No panel is annealed.";
  }

  /** Return the numbers behind the charts as CSV. */
  function historyTable({ panels }) {
    const columns = ["step", "temperature", "distortion", "softDistortion", "freeEnergy", "rate"];
    const rows = panels.flatMap((panel, place) => panel.history.records.map((record) =>
      [place + 1, panel.key, ...columns.map((name) => record[name])].join(",")));
    return [["panel", "rule", ...columns].join(","), ...rows].join("\n") + "\n";
  }

  Object.assign(play, { historyTable, showDial, showControls, showMeasures, showCharts, panelText });
})((globalThis.torchmclPlay ??= {}));
