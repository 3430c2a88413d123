"""Tables are read as spreadsheets of several countries write them."""

import pandas as pd
import pytest

from torchmcl_forecast.spreadsheets import read_table

EXPECTED = pd.DataFrame({"date": ["1.2.2024", "2.2.2024"], "shop": ["007", "Köln"], "sold": [1234.5, 950.0]})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
@pytest.mark.parametrize(
    "text",
    [
        "date,shop,sold\n1.2.2024,007,1234.5\n2.2.2024,Köln,950\n",
        'date,shop,sold\n1.2.2024,007,"1,234.50"\n2.2.2024,Köln,950.00\n',
        "date;shop;sold\n1.2.2024;007;1.234,50\n2.2.2024;Köln;950,00\n",
        '"date";"shop";"sold"\n"1.2.2024";"007";"1234,5"\n"2.2.2024";"Köln";"950"\n',
        'date,shop,sold\n1.2.2024,007,"$1,234.50"\n2.2.2024,Köln,$950.00\n',
        "date;shop;sold\n1.2.2024;007;1\u00a0234,50 €\n2.2.2024;Köln;950,00 €\n",
        "date\tshop\tsold\n1.2.2024\t007\t1234.5\n2.2.2024\tKöln\t950\n",
        "date ; shop; sold \n1.2.2024;007;1234,5\n;;\n2.2.2024;Köln;950\n;;\n\n",
    ],
)
def test_separators_marks_of_numbers_and_encodings(tmp_path, text, encoding):
    (tmp_path / "sales.csv").write_text(text, encoding=encoding)
    found = read_table("forecast", "table", tmp_path / "sales.csv", "shop")
    pd.testing.assert_frame_equal(found, EXPECTED, check_dtype=False)


@pytest.mark.parametrize("cells", [("0.567", "0.123"), ("0.567", "12.345"), ("1.234", "2.345")])
def test_decimals_are_not_taken_for_thousands(tmp_path, cells):
    (tmp_path / "sales.csv").write_text(
        "date;sold\n" + "".join(f"{day}.2.2024;{cell}\n" for day, cell in enumerate(cells, 1))
    )
    assert read_table("forecast", "table", tmp_path / "sales.csv", "shop").sold.tolist() == list(cells)


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2,3,4\n1,2\n5,6,7,8,9\n", b"\x81\x8d\xff"])
def test_other_files_are_named(tmp_path, content):
    (tmp_path / "sales.csv").write_bytes(content)
    with pytest.raises(ValueError, match="`table`"):
        read_table("forecast", "table", tmp_path / "sales.csv", "shop")
