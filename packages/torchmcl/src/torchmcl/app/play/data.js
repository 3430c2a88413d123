// Data sets, all in the square from -1 to 1, and initial positions of hypotheses.
(function (play) {
  "use strict";

  /** Return a generator of numbers in [0, 1) from a seed (mulberry32), so that links give the same picture. */
  function generator(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = Math.imul(state ^ (state >>> 15), state | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  }

  const normal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

  // The three Gaussians of the paper, as in torchmcl_fleet.demo.gaussians.
  const CENTRES = [[-0.5, -0.5], [0, 0.5], [0.5, -0.5]];

  const shapes = {
    clouds(random) {
      const [x, y] = CENTRES[Math.floor(3 * random())];
      return [x + 0.1 * normal(random), y + 0.1 * normal(random)];
    },
    ring(random) {
      const angle = 2 * Math.PI * random(), radius = 0.7 + 0.04 * normal(random);
      return [radius * Math.cos(angle), radius * Math.sin(angle)];
    },
    spiral(random) {
      const along = Math.sqrt(random()), angle = 3.6 * Math.PI * along, radius = 0.85 * along;
      return [radius * Math.cos(angle) + 0.025 * normal(random), radius * Math.sin(angle) + 0.025 * normal(random)];
    },
    branches(random) {
      const along = 1.7 * random() - 0.85, side = random() < 0.5 ? 1 : -1;
      return [along, side * 0.75 * Math.max(0, along + 0.25) + 0.04 * normal(random)];
    },
    // Problems in the plane: many equal modes, modes at two scales, and rare ones.
    circle(random) {
      const angle = (Math.PI / 4) * Math.floor(8 * random());
      return [0.7 * Math.cos(angle) + 0.04 * normal(random), 0.7 * Math.sin(angle) + 0.04 * normal(random)];
    },
    tree(random) {
      const coarse = (2 * Math.PI * Math.floor(3 * random())) / 3, fine = (2 * Math.PI * Math.floor(3 * random())) / 3;
      return [
        0.6 * Math.cos(coarse) + 0.13 * Math.cos(fine) + 0.02 * normal(random),
        0.6 * Math.sin(coarse) + 0.13 * Math.sin(fine) + 0.02 * normal(random),
      ];
    },
    rare(random) {
      const which = random(), x = which < 0.9 ? 0 : which < 0.95 ? -0.7 : 0.7;
      return [x + 0.05 * normal(random), 0.05 * normal(random)];
    },
  };

  function points(key, count, seed) {
    const random = generator(seed), made = new Float64Array(2 * count);
    for (let i = 0; i < count; i++) made.set(shapes[key](random), 2 * i);
    return made;
  }

  const starts = {
    middle: (random) => [0.05 * normal(random), 0.05 * normal(random)],
    corner: (random) => [0.8 + 0.05 * normal(random), 0.8 + 0.05 * normal(random)],
    spread: (random) => [1.8 * random() - 0.9, 1.8 * random() - 0.9],
    data: (random, among) => {
      const place = Math.floor((random() * among.length) / 2);
      return [among[2 * place], among[2 * place + 1]];
    },
  };

  function start(key, count, seed, among) {
    const random = generator(seed * 7919 + 17), made = new Float64Array(2 * count);
    for (let k = 0; k < count; k++) made.set(starts[key](random, among), 2 * k);
    return made;
  }

  // Targets y given x, for the network; x and y are roughly in [-1, 1].
  const relations = {
    fork(random) {
      const x = 2 * random() - 1, side = random() < 0.5 ? 1 : -1;
      return [x, side * 0.4 * (x + 1) + 0.04 * normal(random)];
    },
    fold(random) {
      const y = 2 * random() - 1;
      return [0.75 * y + 0.45 * Math.sin(Math.PI * 1.5 * y) + 0.03 * normal(random), 0.9 * y];
    },
    three(random) {
      const x = 2 * random() - 1, level = Math.floor(3 * random()) - 1;
      return [x, 0.65 * level + 0.2 * Math.sin(3 * x) + 0.05 * normal(random)];
    },
    tree(random) {
      const x = 2 * random() - 1, coarse = Math.floor(3 * random()) - 1, fine = Math.floor(3 * random()) - 1;
      return [x, 0.35 * coarse * (1.2 + x) + 0.08 * fine + 0.01 * normal(random)];
    },
    rare(random) {
      const x = 2 * random() - 1, which = random(), level = which < 0.9 ? 0 : which < 0.95 ? -1 : 1;
      return [x, 0.4 * level * (1.2 + x) + 0.03 * normal(random)];
    },
  };

  function pairs(key, count, seed) {
    const random = generator(seed + 1000), x = new Float64Array(count), y = new Float64Array(count);
    for (let i = 0; i < count; i++) [x[i], y[i]] = relations[key](random);
    return { x, y };
  }

  Object.assign(play, { generator, normal, shapes, points, starts, start, relations, pairs });
})((globalThis.torchmclPlay ??= {}));
