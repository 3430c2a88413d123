# Everything a newcomer or CI needs. The virtual environment is made once and again when the pins change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo film test test-all coverage check docs bench audit clean

help:
	@echo "make demo      set up, train the demonstration, write out/demo/index.html"
	@echo "make film      the same, and its films into docs/_static"
	@echo "make test      set up, run the fast tests and the doctests"
	@echo "make test-all  also the slow tests: processes, browsers, the gallery"
	@echo "make coverage  all tests with the coverage floor"
	@echo "make check     ruff and types"
	@echo "make docs      build the documentation into docs/_build/html"
	@echo "make bench     run the benchmarks of the core on this machine"
	@echo "make audit     search for known vulnerabilities of the pinned packages (needs a network)"
	@echo "make clean     remove all output of the above"

install: $(STAMP)

$(STAMP): $(wildcard packages/*/pyproject.toml studies/pyproject.toml packages/torchmcl/setup.py packages/torchmcl/src/torchmcl/accel/native/c/*) requirements-dev.txt requirements-others.txt constraints.txt
	$(PYTHON) -c "import sys; sys.exit('torchmcl needs Python 3.11 or newer') if sys.version_info < (3, 11) else None"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --requirement requirements-others.txt
	touch $@

demo: install
	$(BIN)/torchmcl demo --out out/demo

# The moving pictures of README and documentation.
film: demo
	cp out/demo/film.gif out/demo/tree.gif docs/_static/

# Two processes share the cores: threads that wait for each other must not keep them busy, which doubles the time.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest

test: install
	$(PYTEST) -n 2 --dist loadfile -m "not slow"

test-all: install
	$(PYTEST) -n 2 --dist loadfile --durations=25

# Apart, because tracing every line takes a quarter of the time again.
coverage: install
	$(PYTEST) -n 2 --dist loadfile --cov --cov-report=term:skip-covered

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# GALLERY=0 leaves out running the examples, which the slow tests do too.
GALLERY ?= 1
docs: install
	$(BIN)/sphinx-build -W --keep-going -q -D plot_gallery=$(GALLERY) -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

bench: install
	$(BIN)/python -m benchmarks.speed.core --out out/bench/core.json
	$(BIN)/python -m benchmarks.speed.import_time --out out/bench/import_time.json

# Pins alone, so that nothing is installed and no package needs to be built.
audit: install
	$(BIN)/python -m pip install --quiet pip-audit
	mkdir -p out && grep -v '^#' constraints.txt > out/audit.txt
	$(BIN)/pip-audit --requirement out/audit.txt --no-deps --disable-pip --strict --progress-spinner off

clean:
	rm -rf $(VENV) out dist packages/*/build packages/*/src/*.egg-info studies/build studies/src/*.egg-info docs/_build docs/gallery docs/reference/generated .pytest_cache .mypy_cache .ruff_cache
