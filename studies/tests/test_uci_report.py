"""The page of the UCI study: its numbers are those of the records, and a browser shows it."""

import json
import statistics

import pytest

from browser import console_errors, opened
from torchmcl.app import main
from torchmcl_studies.reports.uci import cells_of, deviations, write_uci_page
from torchmcl_studies.uci.methods import METHODS, published_cells


def rows():
    made = []
    for number, (name, method) in enumerate(METHODS.items()):
        for set_name, scale in (("yacht", 1.0), ("protein", 2.0)):
            for fold in range(20 if set_name == "yacht" else 5):
                for protocol in ("last", "validation", "test-selected"):
                    value = scale * (1 + 0.1 * number + 0.01 * fold)
                    made.append(
                        {
                            "set": set_name,
                            "fold": fold,
                            "method": name,
                            "protocol": protocol,
                            "seed": 0,
                            "distortion": None if method.single_answer else value,
                            "rmse": value,
                            "usage": None if method.single_answer else [0.2] * 5,
                            "seconds": 0.1,
                            "epochs": 1000,
                        }
                    )
    return made


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uci")
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return write_uci_page(folder)


def test_cells_are_means_over_folds():
    cell = cells_of(rows())["yacht", "mcl", "last", "distortion"]
    assert cell.mean == pytest.approx(statistics.mean(1 + 0.01 * fold for fold in range(20)))
    assert len(cell.values) == 20


def test_deviations_are_in_combined_standard_errors():
    found = {entry[:3]: entry[3] for entry in deviations(rows())}
    cell = cells_of(rows())["yacht", "amcl-exponential", "test-selected", "distortion"]
    published = published_cells()["yacht", "amcl_exp", "distortion"]
    error = (cell.std**2 / 20 + published.std**2 / 20) ** 0.5
    assert found["yacht", "amcl-exponential", "distortion"] == pytest.approx((cell.mean - published.mean) / error)
    assert not any(method in ("mc-dropout", "deep-ensemble") for _, method, _ in found)


def test_published_tables_are_shipped_whole():
    cells = published_cells()
    assert cells["protein", "mcl", "distortion"].mean == 0.80
    assert cells["year", "pbp", "rmse"].std is None


@pytest.mark.slow
def test_the_page_shows_tables_and_plot_without_console_errors(page):
    with opened(page) as driver:
        text = driver.find_element("tag name", "body").text
        assert "Biased" in text
        for title in (
            "Table 1",
            "Table 2",
            "Table 4",
            "Table 5",
            "Paired tests",
            "Agreement with the published tables",
        ):
            assert title in text
        assert "3.09 ± 2.41" in text
        picture = driver.find_element("css selector", "img")
        assert int(picture.get_property("naturalWidth")) > 500
        best = driver.find_element("css selector", "table[id^='last-Table 1'] tbody tr:last-child b").text
        assert best.startswith("1.09")
        assert console_errors(driver) == []


@pytest.mark.slow
def test_the_page_fits_a_phone(page):
    with opened(page, width=500) as driver:
        assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")


def test_bad_arguments_of_the_command_give_exit_code_2(tmp_path, capsys):
    command = ["reproduce", "uci", "--out", str(tmp_path), "--quiet"]
    assert main([*command, "--sets", "yatch"]) == 2
    assert "Did you mean 'yacht'?" in capsys.readouterr().err
    assert main([*command, "--methods", "amcl-exponental"]) == 2
    assert "Did you mean 'amcl-exponential'?" in capsys.readouterr().err
    assert main([*command, "--protocol", "best"]) == 2
    assert main([*command, "--data", str(tmp_path / "none")]) == 2
    with pytest.raises(SystemExit):
        main([*command, "--sets", ","])
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_records_and_page(tmp_path, monkeypatch):
    from torchmcl_studies.data import uci

    generator = __import__("numpy").random.default_rng(0)
    (tmp_path / "data" / "yacht").mkdir(parents=True)
    table = "\n".join(" ".join(f"{v:.4f}" for v in row) for row in generator.normal(size=(308, 7)))
    (tmp_path / "data" / "yacht" / "data.txt").write_text(table)
    assert uci.UCI_SETS["yacht"].n_rows == 308
    command = ["reproduce", "uci", "--quick", "--sets", "yacht", "--folds", "0,1", "--epochs", "2", "--quiet"]
    assert main([*command, "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]) == 0
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 6 * 2
    assert "<h1>The UCI study</h1>" in (tmp_path / "out" / "index.html").read_text()
