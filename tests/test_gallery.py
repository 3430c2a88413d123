"""The gallery runs, covers every rule, and the Python of the documentation pages runs too."""

import re
import runpy
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import torchmcl as mcl
from grids import for_each

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
PAGES = sorted(
    page
    for page in (ROOT / "docs").rglob("*.rst")
    if not {"_build", "gallery", "generated"} & set(page.relative_to(ROOT / "docs").parts)
)
RULES = ("WTA", "RelaxedWTA", "AnnealedWTA", "TopK", "PIT", "Sinkhorn", "EMD")
BLOCK = re.compile(r"^\.\. code-block:: python\n(?:[ ]+:[^\n]*\n)*\n((?:(?:[ ]+[^\n]*)?\n)+)", re.MULTILINE)


def file_name_of(rule):
    """RelaxedWTA -> plot_relaxed_wta.py, TopK -> plot_top_k.py."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", rule)
    return f"plot_{'_'.join(words).lower()}.py"


def python_blocks(page):
    return [textwrap.dedent(block) for block in BLOCK.findall(page.read_text(encoding="utf-8") + "\n")]


@pytest.fixture
def one_thread():
    """The examples are small, and threads on busy cores wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# In this process, as imports take longer than most examples; the documentation runs them too.
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_without_warning(example, tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    with pyplot.rc_context({"backend": "Agg"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
        try:
            runpy.run_path(str(example), run_name="__main__")
        finally:
            pyplot.close("all")


def test_the_solutions_of_the_robot_arms_reach_the_place():
    text = (ROOT / "examples" / "plot_robot_arm.py").read_text(encoding="utf-8")
    parts = {}
    exec(compile(text.partition("torch.manual_seed(0)")[0], "plot_robot_arm.py", "exec"), parts)
    for limits in parts["LIMITS"].values():
        angles = parts["random_postures"](limits, 50)
        place = parts["joints"](angles)[:, -1]
        found = parts["solutions"](place)
        reached = parts["joints"](found)[..., -1, :]
        torch.testing.assert_close(reached, place.unsqueeze(1).expand_as(reached), rtol=0, atol=1e-4)
        low, high = torch.tensor(limits).unbind(dim=-1)
        assert ((angles >= low) & (angles <= high)).all()
        assert (found - angles.unsqueeze(1)).abs().amax(dim=-1).amin(dim=-1).max() < 1e-2
        assert parts["coverage"](found, place, limits) == 1


@for_each("rule", RULES)
def test_every_rule_has_an_example_that_uses_it(rule):
    example = ROOT / "examples" / file_name_of(rule)
    assert example in EXAMPLES
    assert re.search(rf"\bmcl\.{rule}\b", example.read_text(encoding="utf-8"))


def test_a_bank_of_adapters_agrees_with_its_model_and_refuses_what_it_does_not_understand():
    pytest.importorskip("matplotlib")
    text = (ROOT / "examples" / "plot_low_rank_adapters.py").read_text(encoding="utf-8")
    parts = {}
    exec(compile(text.partition("# Prompts with two languages")[0], "plot_low_rank_adapters.py", "exec"), parts)
    model = parts["LanguageModel"](8, 5, width=8)
    bank = parts["AdapterBank"](model, ["blocks.0.qkv", "head"], 2)
    for up in bank.up.values():
        up.data.normal_()
    ids = torch.randint(8, (3, 5))
    before = model(ids)
    bank.check(ids)
    assert torch.equal(model(ids), before)
    rows = list(ids) * 20
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda row: bank(row[None]).hypotheses, rows))
    torch.testing.assert_close(torch.cat(together), bank(torch.stack(rows)).hypotheses)
    saved = bank.adapters()
    with pytest.raises(ValueError, match="`saved` must have the layers"):
        bank.load_adapters(saved | {"up/lm_head": saved["up.head"]})
    model.tokens.weight = model.head.weight
    for layer in ("head", "blocks.0.key", "tokens", "blocks.0"):
        with pytest.raises(ValueError, match="AdapterBank: `layers` must n"):
            parts["AdapterBank"](model, [layer], 2)
    right = torch.tensor([[False, True, True, False, False]])
    assert parts["continuations"](ids[:1], right).mask.sum() == 2
    for wrong in ([[True, True, True, False, False]], [[False] * 5], [[False, True, False, True, False]]):
        with pytest.raises(ValueError, match="continuations: `is_continuation` must"):
            parts["continuations"](ids[:1], torch.tensor(wrong))


def test_the_list_of_rules_is_complete():
    public = [getattr(mcl, name) for name in mcl.__all__]
    rules = {item.__name__ for item in public if isinstance(item, type) and issubclass(item, mcl.AssignmentRule)}
    assert rules - {"AssignmentRule"} == set(RULES)


def test_every_public_name_is_in_the_reference():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.rst"))
    listed = set(re.findall(r"^   (?:~?[\w.]+\.)?(\w+)$", text, re.MULTILINE))
    names = {name for module in (mcl, mcl.metrics, mcl.costs, mcl.rules) for name in module.__all__}
    unlisted = names - listed - {"__version__", "metrics", "nn", "MEAN", "MEDIAN"}  # the last two are constants
    assert unlisted == set(), "add the names to a page in docs/reference"


def test_blocks_of_python_are_found_on_every_page_that_has_some():
    for page in PAGES:
        assert bool(python_blocks(page)) == ("code-block:: python" in page.read_text(encoding="utf-8")), page.name


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's own
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", list(filter(python_blocks, PAGES)), ids=lambda path: path.stem)
def test_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    torch.manual_seed(0)
    namespace = {"__name__": f"docs.{page.stem}"}
    for number, block in enumerate(python_blocks(page), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)
