"""Plots draw on the axes of users: history, futures with widths by probability, tube."""

import numpy as np
from matplotlib.figure import Figure


def test_lines_are_the_futures_and_the_more_probable_are_wider(fitted, frame):
    axis = Figure().subplots()
    assert fitted.forecast().plot("shop 1", axis) is axis
    futures = fitted.predict()
    of_shop = futures[futures.unique_id == "shop 1"]
    history, *lines = axis.get_lines()
    np.testing.assert_allclose(history.get_ydata(), frame[frame.unique_id == "shop 1"].y.to_numpy()[-14:])
    for k, line in enumerate(lines, start=1):
        np.testing.assert_allclose(line.get_ydata(), of_shop[f"future_{k}"])
        assert f"{100 * of_shop[f'probability_{k}'].iloc[0]:.0f} %" in line.get_label()
    assert [line.get_linewidth() for line in lines] == sorted((line.get_linewidth() for line in lines), reverse=True)
    assert len(axis.collections) == 1  # the tube
    assert axis.get_title(loc="left") == "shop 1"
