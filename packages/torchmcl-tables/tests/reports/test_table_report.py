"""The page about a model of a table: it shows the records, in a browser, and names in it cannot harm."""

import copy

import polars as pl
import pytest

from browser import console_errors, opened
from house_tables import houses, write_csv
from torchmcl.app import main
from torchmcl_tables import Cooling
from torchmcl_tables.data import Table, read_table
from torchmcl_tables.model import TableFit, fit_table, table_records
from torchmcl_tables.reports import write_report
from torchmcl_tables.reports.figures import predictions_figure, training_figure
from torchmcl_tables.verdict import verdict_on

EVIL = '<img src=x onerror="document.title=1/0">'
SCRIPT = "</script><script>document.title='owned'</script>"
LONG = "a_very_long_name_without_any_place_to_break_" * 6


@pytest.fixture(scope="module")
def records():
    how = TableFit(["price"], drop=["days"], parameters={"n_epochs": 40, "hidden": (16,)})
    return table_records(fit_table(Table("houses.csv", pl.DataFrame(houses(400))), how))


@pytest.fixture(scope="module")
def page(records, tmp_path_factory):
    return write_report(records, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    """A table whose names are HTML, dollars and endless words, two targets, one of them hostile too."""
    names = {"area": EVIL, "rooms": "cost in $x_{$", "city": LONG, "price": SCRIPT, "days": "天数"}
    rows = []
    for row in houses(120):
        made = {names[key]: value for key, value in row.items()}
        made[LONG] = f"<b onclick=alert(1)>{made[LONG]}</b>" if made[LONG] else ""
        rows.append(made)
    folder = tmp_path_factory.mktemp("<u>hostile & folder")
    path = write_csv(folder / "<svg onload=alert(2)>.csv", rows)
    how = TableFit([SCRIPT, "天数"], parameters={"n_epochs": 2, "hidden": (8,), "n_hypotheses": 3})
    fitted = fit_table(read_table(path), how)
    return write_report(table_records(fitted), folder / "report.html")


@pytest.mark.slow
def test_the_report_has_every_section_without_console_errors(page, records):
    with opened(page) as driver:
        text = driver.find_element("tag name", "body").text
        assert len(driver.find_elements("tag name", "h2")) == 8
        pictures = driver.find_elements("css selector", "figure img")
        assert len(pictures) == 4
        assert all(int(picture.get_property("naturalWidth")) > 500 for picture in pictures)
        assert all(picture.get_attribute("alt") for picture in pictures)
        assert verdict_on(records).word in driver.find_element("css selector", ".verdict b").text
        members = [row.text for row in driver.find_elements("css selector", "#members td:first-child")]
        assert members == ["networks", "networks with bins", "forest", "background"]
        assert f"{records['evaluation']['measures']['rmse'][0]:.4g}" in text
        assert len(driver.find_elements("css selector", ".row .share")) == 8 * 5
        held = driver.find_elements("css selector", "#coverage tbody tr:nth-child(5) td")[1].text
        assert held == f"{100 * records['evaluation']['coverage'][4]['covered'][0]:.1f} %"
        assert len(driver.find_elements("css selector", "#columns tbody tr")) == 3
        assert console_errors(driver) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["page", "hostile_page"])
def test_the_page_is_readable_at_the_width_of_a_phone(name, request):
    with opened(request.getfixturevalue(name), width=500) as driver:
        # Chromium's own windows have a least width; the emulated screen has not.
        screen = {"width": 375, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        assert driver.execute_script("return window.innerWidth") <= 376
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 376
        sizes = driver.execute_script(
            "return [...document.querySelectorAll('p, td, figcaption, .cells')].map("
            "e => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 13


@pytest.mark.slow
def test_hostile_names_are_shown_and_not_run(hostile_page):
    with opened(hostile_page) as driver:
        assert driver.title.startswith("</script>")
        assert (
            driver.execute_script("return document.querySelectorAll('img[src=x], main script, u, b[onclick]').length")
            == 0
        )
        text = driver.find_element("tag name", "body").text
        assert EVIL in text
        assert SCRIPT in text
        assert "cost in $x_{$" in text
        assert "<svg onload=alert(2)>.csv" in text
        assert "天数" in text
        assert console_errors(driver) == []


def test_the_page_loads_nothing_from_outside(page):
    text = page.read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert text.count("<script") == 1  # that of the pictures, allowed by its checksum


def test_the_report_begins_with_the_verdict(records, tmp_path):
    found = copy.deepcopy(records)
    for entry in found["evaluation"]["coverage"]:
        entry["pieces"] = 0.4
    found["schema"]["suspicious"] = [{"name": EVIL, "reason": "it counts the rows"}]
    text = write_report(found, tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.index("Verdict: ") < text.index('class="lead"')
    assert '<div class="verdict careful">' in text
    assert "Forks: 40.0 %" in text
    assert EVIL not in text


def test_networks_of_a_rule_have_no_shares_and_a_temperature(tmp_path):
    how = TableFit(["price"], parameters={"n_epochs": 4, "hidden": (8,), "n_restarts": 1, "rule": Cooling()})
    found = table_records(fit_table(Table("houses.csv", pl.DataFrame(houses(120))), how))
    assert found["member_weights"] is None
    text = write_report(found, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Training and temperature" in text
    assert "Members of the model" not in text


def test_scores_below_zero_are_drawn_on_a_linear_scale():
    found = {"loss": [1.0, 0.2, -0.3], "validation": [1.1, None, -0.1], "temperature": None, "kept_epoch": 1}
    axis = training_figure(found).axes[0]
    assert axis.get_yscale() == "linear"
    assert list(axis.lines[0].get_ydata()) == [1.0, 0.2, -0.3]
    assert training_figure(found | {"loss": [2.0, 1.0, 0.5], "validation": None}).axes[0].get_yscale() == "log"


def test_axes_separate_thousands():
    found = {"truth": [[20_000.0], [30_000.0]], "hypotheses": [[[21_000.0]], [[29_000.0]]]}
    axis = predictions_figure(found | {"probabilities": [[1.0], [1.0]]}, 0).axes[0]
    assert axis.xaxis.get_major_formatter()(22_820.0, 0) == "22,820"


def test_the_command_writes_the_page_of_another_table(tmp_path, capsys):
    path = write_csv(tmp_path / "houses.csv", houses(60))
    test = write_csv(tmp_path / "test.csv", houses(25, seed=3))
    model = str(tmp_path / "model")
    fast = ["--epochs", "2", "--hidden", "8", "--rule", "mcl", "--test", "0", "--quiet"]
    assert main(["fit", str(path), "--target", "price", "-o", model, *fast]) == 0
    assert main(["report", model]) == 2
    assert "--data" in capsys.readouterr().err
    assert main(["report", model, "--data", str(test), "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "test.csv" in text
    assert "Training" in text
    no_target = write_csv(tmp_path / "no.csv", [{k: v for k, v in row.items() if k != "price"} for row in houses(5)])
    assert main(["report", model, "--data", str(no_target)]) == 2
    assert "must have a column 'price'" in capsys.readouterr().err
