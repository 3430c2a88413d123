// The settings of the reader, and their encoding in a link. Links are untrusted: each value is checked.
(function (play) {
  "use strict";

  const RULES = { wta: "Winner takes all", relaxed: "Relaxed", annealed: "Annealed", top: "Top-n" };
  const one = (of) => (text, fallback) => (of.includes(text) ? text : fallback);
  const integer = (low, high) => (text, fallback) =>
    /^\d{1,9}$/.test(text) ? Math.min(Math.max(Number(text), low), high) : fallback;
  const number = (low, high) => (text, fallback) =>
    /^\d{1,4}(\.\d{1,6})?$/.test(text) ? Math.min(Math.max(Number(text), low), high) : fallback;
  const flag = (text, fallback) => (text === "1" ? true : text === "0" ? false : fallback);
  const ruleList = (text, fallback) => {
    const keys = text.split(",").slice(0, 3);
    return keys.every((key) => Object.hasOwn(RULES, key)) ? keys : fallback;
  };

  const FIELDS = {
    data: { value: "clouds", read: one(["clouds", "ring", "spiral", "branches", "circle", "tree", "rare", "own"]) },
    points: { value: 1000, read: integer(50, 5000) },
    k: { value: 12, read: integer(1, 50) },
    rules: { value: ["wta", "relaxed", "annealed"], read: ruleList, write: (keys) => keys.join(",") },
    epsilon: { value: 0.1, read: number(0, 0.9) },
    n: { value: 3, read: integer(1, 50) },
    start: { value: "middle", read: one(["middle", "corner", "spread", "data"]) },
    seed: { value: 1, read: integer(1, 9999) },
    cooling: { value: "linear", read: one(["hand", "linear", "exponential", "cosine"]) },
    steps: { value: 300, read: integer(10, 3000) },
    heat: { value: 1.5, read: number(0, 1.5), write: (heat) => String(+heat.toFixed(4)) },
    cells: { value: true, read: flag, write: (on) => (on ? "1" : "0") },
    paths: { value: true, read: flag, write: (on) => (on ? "1" : "0") },
    story: { value: 0, read: integer(0, 7) },
    own: { value: new Float64Array(0), read: unpacked, write: packed },
  };

  const LINKED_POINTS = 400;
  const DIGITS = 1295; // two digits in base 36 for a coordinate

  function packed(points) {
    const code = (value) => Math.round(((value + 1) / 2) * DIGITS).toString(36).padStart(2, "0");
    return Array.from(play.thinned(points, LINKED_POINTS), code).join("");
  }

  function unpacked(text, fallback) {
    if (!/^([0-9a-z]{4})+$/.test(text) || text.length > 4 * LINKED_POINTS) return fallback;
    return Float64Array.from(text.match(/../g), (code) => (2 * parseInt(code, 36)) / DIGITS - 1);
  }

  const defaults = () => Object.fromEntries(Object.entries(FIELDS).map(([name, { value }]) => [name, value]));

  /** Return the state of a link's part after "#"; missing or invalid values are taken from `base`. */
  function readState(hash, base = defaults()) {
    const state = { ...base };
    for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
      if (Object.hasOwn(FIELDS, name)) state[name] = FIELDS[name].read(text, state[name]);
    }
    if (state.data === "own" && !state.own.length) state.data = "clouds";
    return state;
  }

  /** Return the part of a link after "#": only what differs from the defaults. */
  function writeState(state) {
    const words = [];
    for (const [name, { value, write = String }] of Object.entries(FIELDS)) {
      if (name === "own" && state.data !== "own") continue;
      if (write(state[name]) !== write(value)) words.push(`${name}=${write(state[name])}`);
    }
    return words.join("&");
  }

  Object.assign(play, { RULES, defaultState: defaults, readState, writeState });
})((globalThis.torchmclPlay ??= {}));
