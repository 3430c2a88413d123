"""The page to play with: its numbers are those of Python."""

import json
import shutil
import subprocess
import webbrowser

import pytest
import torch

import torchmcl as mcl
from browser import opened
from grids import for_each
from torchmcl import theory
from torchmcl.app import main
from torchmcl.app.play import play_page, play_script, write_play_page
from torchmcl.nn import MultiHypothesisMLP

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_play_page(tmp_path_factory.mktemp("play") / "play.html")


@pytest.fixture(scope="module")
def computed(page):
    """Return a function that evaluates JavaScript with `play` and `given`, by node, or by the browser without it."""
    node = shutil.which("node")
    if node is None:
        with opened(page) as driver:
            yield lambda code, given=None: driver.execute_script(
                f"const play = torchmclPlay, given = arguments[0]; {code}", given
            )
        return

    def run(code, given=None):
        body = f"const play = globalThis.torchmclPlay, given = {json.dumps(given)};"
        body += f"console.log(JSON.stringify((() => {{ {code} }})()));"
        done = subprocess.run([node, "-"], input=f"{play_script()}\n{body}", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    yield run


def samples(n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.5, 0.2], dtype=torch.float64)
    return torch.randn(n, 2, generator=generator, dtype=torch.float64) * scale


RULES = [
    ("wta", {}, mcl.WTA()),
    ("relaxed", {"epsilon": 0.2}, mcl.RelaxedWTA(0.2)),
    ("annealed", {"temperature": 0.3}, mcl.AnnealedWTA(0.3)),
    ("annealed", {"temperature": 0.002}, mcl.AnnealedWTA(0.002)),
    ("annealed", {"temperature": 0}, mcl.AnnealedWTA(0.0)),
    ("top", {"n": 2.5}, mcl.TopK(2.5)),
    ("top", {"n": 5}, mcl.TopK(5)),
]


@for_each("key, parameters, rule", RULES)
def test_rules_give_the_weights_and_entropies_of_python(computed, key, parameters, rule):
    cost = torch.rand(20, 5, dtype=torch.float64).round(decimals=1)  # with ties
    got = computed(
        "const rule = play.rule(given.key, given.parameters);"
        "return given.cost.map((row) => { const w = new Float64Array(row.length);"
        "const entropy = rule(Float64Array.from(row), w); return [[...w], entropy]; })",
        {"key": key, "parameters": parameters, "cost": cost.tolist()},
    )
    weights = rule(cost)
    torch.testing.assert_close(torch.tensor([row for row, _ in got], dtype=torch.float64), weights, **CLOSE)
    entropies = theory.assignment_entropy(weights, mean_axes=0)
    torch.testing.assert_close(torch.tensor([entropy for _, entropy in got], dtype=torch.float64), entropies, **CLOSE)


@for_each("key, parameters, rule", RULES)
def test_measures_and_steps_are_those_of_python(computed, key, parameters, rule):
    points, start = samples(), samples(5, seed=1)
    temperature = parameters.get("temperature", 0)
    got = computed(
        "const flat = (rows) => Float64Array.from(rows.flat());"
        "const points = flat(given.points), h = flat(given.start), work = play.workspace(h.length / 2); let m;"
        "const rule = play.rule(given.key, given.parameters);"
        "for (let t = 0; t < 10; t++) { m = play.sweep(points, h, rule, work, given.t);"
        "  if (t < 9) play.move(h, work); }"
        "return [[...h], m, [...work.mass], [...work.wins]]",
        {"key": key, "parameters": parameters, "points": points.tolist(), "start": start.tolist(), "t": temperature},
    )
    hypotheses = start
    for _ in range(9):
        weights = rule(mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=points))
        hypotheses = hypotheses + 0.2 * (theory.soft_barycenters(points, weights, otherwise=hypotheses) - hypotheses)
    cost = mcl.pairwise_sq_euclidean(hypotheses=hypotheses, targets=points)
    weights = rule(cost)
    assert got[0] == pytest.approx(hypotheses.flatten().tolist(), abs=1e-5)
    measures = {
        "distortion": cost.amin(-1).mean(),
        "softDistortion": theory.soft_distortion(cost, weights),
        "entropy": theory.assignment_entropy(weights),
        "rate": theory.mutual_information(weights),
    }
    if key == "annealed":
        measures["freeEnergy"] = theory.free_energy(cost, temperature)
    for name, value in measures.items():
        assert got[1][name] == pytest.approx(value.item(), abs=1e-5), name
    assert got[2] == pytest.approx(weights.sum(0).tolist(), abs=1e-4)
    assert sum(got[3]) == len(points)


def test_schedules_are_those_of_python(computed):
    steps = [0, 1, 7, 39.5, 40, 41]
    got = computed(
        "const s = play.schedules;"
        "return [s.linear(1.5, 0.1, 40), s.cosine(1.5, 0.1, 40), s.exponential(0.5, 0.8, 1e-3), s.constant(0.3)]"
        "  .map((schedule) => given.map(schedule))",
        steps,
    )
    ours = [
        mcl.Linear(1.5, 0.1, 40),
        mcl.Cosine(1.5, 0.1, 40),
        mcl.Exponential(0.5, 0.8, cutoff=1e-3),
        mcl.Constant(0.3),
    ]
    for values, schedule in zip(got, ours, strict=True):
        assert values == pytest.approx([schedule(step) for step in steps], abs=1e-12)


@for_each("key", ["linear", "cosine", "exponential"])
def test_every_cooling_of_the_page_ends_hard(computed, key):
    first, last = computed("const c = play.cooling(given, 2, 50); return [c(0), c(50)]", key)
    assert (first, last) == (2, 0)


def test_the_local_critical_temperatures_are_those_of_theory(computed):
    points = samples()
    got = computed("return play.localCriticalTemperature(Float64Array.from(given.flat()))", points.tolist())
    assert got == pytest.approx(theory.local_critical_temperature(points).item(), abs=1e-9)
    pairs = computed(
        "const p = play.pairs('fork', 400, 1); return [[...p.x], [...p.y], play.largestLocalCriticalTemperature(p)]"
    )
    x, y = torch.tensor(pairs[0]), torch.tensor(pairs[1])
    bins = ((x + 1) * 10).long().clamp(0, 19)
    values = [theory.local_critical_temperature(y[bins == place, None]) for place in range(20) if (bins == place).any()]
    assert pairs[2] == pytest.approx(max(values).item(), abs=1e-5)


@pytest.mark.slow
def test_hypotheses_split_just_below_the_local_critical_temperature_and_not_above(computed):
    places = computed(
        "return [1.1, 0.9].map((heat) => { const points = play.points('branches', 500, 1);"
        "const temperature = heat * play.localCriticalTemperature(points);"
        "const start = play.start('middle', 6, 1, points);"
        "const s = new play.Simulation(points, ['annealed'], start, { temperature }, 1);"
        "for (let t = 0; t < 500; t++) s.advance({ temperature });"
        "return play.distinctPlaces(s.panels[0].hypotheses, temperature); })"
    )
    assert places[0] == 1
    assert places[1] > 1


@pytest.mark.slow
def test_the_rate_distortion_curve_is_that_of_python(computed):
    sources, temperature = samples(40), 0.1
    got = computed(
        "const s = Float64Array.from(given.flat()), n = s.length / 2;"
        "const run = new play.BlahutArimoto(play.squaredDistances(s, s), n, n, 0.1);"
        "while (run.gap > 1e-6 && run.updates < 20000) run.update(); return run.point()",
        sources.tolist(),
    )
    ours = theory.rate_of_samples(sources, temperature, n_iters=20000, tolerance=1e-6)
    assert got["rate"] == pytest.approx(ours.rate.item(), abs=1e-5)
    assert got["distortion"] == pytest.approx(ours.distortion.item(), abs=1e-5)


def test_a_step_in_parts_is_the_same_as_a_whole_one(computed):
    """Where time is short some panels wait for the next frame; what they compute does not change."""
    whole, parts, calls = computed(
        "const run = (milliseconds) => { const points = play.points('ring', 400, 1);"
        "const start = play.start('middle', 7, 1, points), at = (t) => ({ temperature: 0.1 / t, epsilon: 0.1, n: 2 });"
        "const s = new play.Simulation(points, ['wta', 'relaxed', 'annealed'], start, at(1), 1); let calls = 0;"
        "while (s.step < 20) { s.advance(at(s.step + 2), milliseconds); calls++; }"
        "return [s.panels.map((p) => [...p.hypotheses]), calls]; };"
        "const whole = run(Infinity), parts = run(0); return [whole[0], parts[0], parts[1]]"
    )
    assert whole == parts
    assert calls == 60


@pytest.mark.slow
def test_no_run_gets_below_the_floor(computed):
    got = computed(
        "const points = play.points('ring', 300, 1), curve = new play.RateCurve(points, 3.3); curve.advance(1e9);"
        "const critical = play.localCriticalTemperature(points), cool = play.cooling('linear', 1.5 * critical, 300);"
        "const at = (t) => ({ temperature: cool(t), epsilon: 0.1, n: 2 });"
        "const start = play.start('data', 8, 1, points);"
        "const s = new play.Simulation(points, ['wta', 'relaxed', 'annealed'], start, at(0), 1);"
        "for (let t = 1; t < 360; t++) s.advance(at(t));"
        "return [curve.distortionAt(3), curve.distortionAt(0), s.panels.map((p) => p.measures.distortion)]"
    )
    assert min(got[2]) > got[0] > 0
    assert got[1] == pytest.approx(0.49, abs=0.03)


@for_each("temperature", [0.0, 0.2])
def test_the_network_trains_as_in_pytorch(computed, temperature):
    got = computed(
        "const net = new play.Network(3, [8, 8], 4), pairs = play.pairs('fork', 40, 1);"
        "const first = net.layers.map((l) => l.tensors.map((t) => [...t.value])), losses = [];"
        "for (let t = 0; t < 30; t++) losses.push(net.train(pairs, play.annealed(given), 0.01).loss);"
        "return [[...pairs.x], [...pairs.y], first, losses, [...net.forward(Float64Array.of(-0.5, 0.5))]]",
        temperature,
    )
    x, y, first, losses, answers = got
    model = MultiHypothesisMLP(1, 1, 3, hidden=(8, 8), scores=False).double()
    values = [torch.tensor(v, dtype=torch.float64) for layer in first for v in layer]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value.view_as(parameter))
    x, y = (torch.tensor(v, dtype=torch.float64) for v in (x, y))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for loss in losses:
        predictions = model(x[:, None])
        cost = mcl.pairwise_sq_euclidean(hypotheses=predictions.hypotheses, targets=y[:, None, None])
        ours = mcl.mcl_loss(mcl.assign(cost, mcl.AnnealedWTA(temperature)))
        assert loss == pytest.approx(ours.item(), abs=1e-5)
        optimizer.zero_grad()
        ours.backward()
        optimizer.step()
    expected = model(torch.tensor([[-0.5], [0.5]], dtype=torch.float64)).hypotheses.flatten()
    assert answers == pytest.approx(expected.tolist(), abs=1e-5)


def test_links_carry_the_state_and_wrong_ones_do_no_harm(computed):
    hash_ = (
        "data=spiral&points=5000&k=50&rules=annealed,top&epsilon=0.25&n=4&start=corner&seed=7&cooling=cosine&steps=77"
    )
    assert computed("return play.writeState(play.readState(given))", f"#{hash_}") == hash_
    own = computed(
        "const own = Float64Array.of(-1, 1, 0.25, -0.5);"
        "return [...play.readState(play.writeState({ ...play.defaultState(), data: 'own', own })).own]"
    )
    assert own == pytest.approx([-1, 1, 0.25, -0.5], abs=1e-3)
    wrong = ["k=1e9", "k=-3", "data=__proto__", "rules=toString", "own=%00", "heat=NaN", "__proto__=1", "%", "data=own"]
    written = computed("return given.map((text) => play.writeState(play.readState(text)))", wrong)
    assert written == [""] * len(wrong)
    assert computed("return play.readState('k=999').k") == 50


def test_every_step_of_the_story_is_a_state(computed):
    steps = computed(
        "return play.story.map((s) => [s.title, s.attempt, s.state, play.writeState(play.readState(s.state))])"
    )
    assert len(steps) == 7
    for title, attempt, state, written in steps:
        assert title
        assert attempt
        said, kept = set(state.split("&")), set(written.split("&"))
        assert kept <= said, "a word of the state that the page does not know"


@pytest.mark.slow
def test_the_claim_of_the_last_step_holds(computed):
    """From a start on the data winner-takes-all ends lower on the branches; from a corner it never does."""
    code = (
        "return [1, 2, 3, 4, 5, 6, 7, 8].map((seed) => { const points = play.points('branches', 1000, seed);"
        "const cool = play.cooling('linear', 1.5 * play.localCriticalTemperature(points), 300);"
        "const at = (t) => ({ temperature: cool(t) }), start = play.start(given, 12, seed, points);"
        "const s = new play.Simulation(points, ['wta', 'annealed'], start, at(0), seed);"
        "for (let t = 1; t <= 380; t++) s.advance(at(t));"
        "return s.panels[0].measures.distortion < s.panels[1].measures.distortion; })"
    )
    assert sum(computed(code, "data")) >= 7
    assert sum(computed(code, "corner")) == 0


def test_the_page_is_one_file_that_loads_nothing():
    text = play_page()
    assert "default-src 'none'" in text
    assert "script-src 'sha256-" in text
    assert text.count("<script") == 1
    for outside in ("http://", "https://", "src=", "@import", "eval(", "innerHTML"):
        assert outside not in text, outside


def test_the_command_writes_the_page_and_opens_it(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address) or True)
    path = tmp_path / "deep" / "play.html"
    assert main(["play", "--out", str(path)]) == 0
    assert asked == []
    assert main(["play", "--out", str(path), "--open"]) == 0
    assert asked == [path.as_uri()]
    assert path.read_text(encoding="utf-8") == play_page()
    assert capsys.readouterr().out.splitlines() == [f"Open the page: {path.as_uri()}", f"Opened {path.as_uri()}"]
