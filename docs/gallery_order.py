"""The order of the gallery: the first network, the rules, and then the other examples."""

__all__ = ["ReadingOrder"]

_FIRST = (
    "plot_first_network.py",
    "plot_wta.py",
    "plot_relaxed_wta.py",
    "plot_annealed_wta.py",
    "plot_top_k.py",
    "plot_pit.py",
    "plot_sinkhorn.py",
    "plot_emd.py",
    "plot_schedules.py",
    "plot_auto_annealing.py",
    "plot_theory.py",
)


class ReadingOrder:
    """Sort key for sphinx-gallery: the listed files as listed, the others after them by name."""

    def __init__(self, src_dir: str) -> None:
        self.src_dir = src_dir

    def __call__(self, filename: str) -> tuple[int, str]:
        """Return the place of a file."""
        return (_FIRST.index(filename) if filename in _FIRST else len(_FIRST), filename)

    def __repr__(self) -> str:
        """Return the same text in every build."""
        return "<ReadingOrder>"
