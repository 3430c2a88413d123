"""Configuration of the documentation: no network, no dates, so that two builds of one state are alike."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import torch

from torchmcl import __version__
from torchmcl.demo.play_page import write_play_page

# The examples are small; threads on busy cores would only wait for each other.
torch.set_num_threads(1)

project = "torchmcl"
author = "The torchmcl developers"
copyright = "2026, The torchmcl developers"
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "sphinx.ext.mathjax",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "sg_execution_times.rst"]
# Single backticks, as in the docstrings, link to a name of the package where there is one.
default_role = "py:obj"

# Docstrings are Google style; types stand in the signature only.
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Reference"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Defaults as they are written: the repr of a function or class is not Python, and a signature with one is not parsed.
autodoc_preserve_defaults = True
# Lets `fitted_` in a docstring be a name: without it the underscore at its end makes a link of it, and is dropped.
strip_signature_backslash = True
autosummary_generate = True
# Names are documented where users find them, torchmcl.X, not where they are defined.
autosummary_imported_members = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": "gallery_order.ReadingOrder",
    "min_reported_time": 10**9,
    "show_signature": False,
    "write_computation_times": False,
    "download_all_examples": False,
    "plot_gallery": "True",
    "thumbnail_size": (480, 320),
    "abort_on_example_error": True,
    "reset_modules": ("matplotlib",),
}
sys.path.insert(0, str(Path(__file__).parent))

html_theme = "pydata_sphinx_theme"
html_title = "torchmcl"
html_last_updated_fmt = None
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["torchmcl.css"]
# The home page stands alone; every other page lists its section on the left.
html_sidebars = {"index": [], "search": [], "genindex": []}
html_context = {"default_mode": "auto"}
# Addresses stand in one place; without them there are no links that lead nowhere.
addresses = tomllib.loads(
    (Path(__file__).parents[1] / "packages" / "torchmcl" / "pyproject.toml").read_text(encoding="utf-8")
)["tool"]["torchmcl"]
html_baseurl = addresses["documentation"]
html_sourcelink_suffix = ""
html_theme_options = {
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "show_nav_level": 1,
    "navigation_with_keys": False,
    **({"github_url": addresses["repository"]} if addresses["repository"] else {}),
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        # Nothing to list there, and no column for it.
        **{page: [] for page in ("index", "start", "how_to", "explanation", "results", "play", "gallery/index")},
    },
}


def escape_bars(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Let |x| in a docstring be an absolute value: no docstring here uses substitutions."""
    lines[:] = [line if "``" in line or ">>>" in line else line.replace("|", "\\|") for line in lines]


def parseable_defaults(
    app: object, what: str, name: str, obj: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Let a default that a dataclass makes for each object be "...": a signature with `<factory>` is not parsed."""
    return signature and signature.replace("<factory>", "..."), returns


def write_page_to_play(app: Any, error: Exception | None) -> None:
    """Write the page to play with beside the pictures: it is made of the package, not kept with the documentation."""
    if error is None and app.builder.format == "html":
        write_play_page(Path(app.outdir) / "_static" / "play.html")


def setup(app: Any) -> None:
    """Connect the hooks, after the one that reads Google style."""
    app.connect("build-finished", write_page_to_play)
    app.connect("autodoc-process-signature", parseable_defaults)
    app.connect("autodoc-process-docstring", escape_bars, priority=900)
