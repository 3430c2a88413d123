"""Files of predictions that `torchmcl diagnose` reads."""

import numpy as np
import pytest

from torchmcl.app import main
from torchmcl.app.commands import read_predictions


def test_files_that_hold_something_else_are_refused(tmp_path, monkeypatch, capsys):
    path = tmp_path / "predictions.npz"
    assert main(["diagnose", str(path)]) == 2
    assert "must be a file" in capsys.readouterr().err
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ValueError, match="must be an npz file of arrays"):
        read_predictions(path)
    np.savez(path, hypotheses=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="must be an npz file of arrays"):
        read_predictions(path)
    np.savez(path, hypotheses=np.zeros((2, 2, 1)))
    with pytest.raises(ValueError, match="contain an array `targets`, got hypotheses"):
        read_predictions(path)
    np.savez(path, hypotheses=np.zeros((2, 2, 1)), targets=np.zeros((2, 1), dtype=int))
    with pytest.raises(ValueError, match="`targets`"):
        read_predictions(path)
    monkeypatch.setenv("TORCHMCL_LIMIT_TABLE_BYTES", "10")
    with pytest.raises(ValueError, match="TORCHMCL_LIMIT_TABLE_BYTES"):
        read_predictions(path)
