# What a newcomer, a contributor or CI runs. Environments are created once, and again when their requirements change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := .venv-demo
PURE := .venv-pure
INSTALL := $(PYTHON) requirements/install.py
# One package alone: make test PACKAGE=torchmcl-tables
PACKAGE ?=
FOLDER := $(if $(PACKAGE),$(firstword $(wildcard packages/$(PACKAGE) $(PACKAGE)) packages/$(PACKAGE)))
# One process for each core. More threads than cores, and threads that wait for each other, would double the time.
RUN_TESTS := -m pytest -n auto --maxprocesses 8 --dist loadfile
# Cached byte code halves the start of the many processes of the tests, also where the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python $(RUN_TESTS)

.PHONY: help install demo film quick pure test test-all test-gpu coverage check docs bench audit clean

help:
	@echo "make demo      train the demonstration and write out/demo/index.html"
	@echo "make quick     contracts and oracles of the core: run it while moving code (a minute)"
	@echo "make test      every public call once, in all packages (a few minutes); PACKAGE=torchmcl-tables: one package"
	@echo "make test-all  also long contracts, processes, browsers, kernels and the gallery"
	@echo "make pure      the quick tests in an environment with the core alone, without a compiler"
	@echo "make test-gpu  tests that need a CUDA device"
	@echo "make coverage  all tests with the coverage floor"
	@echo "make check     ruff and mypy"
	@echo "make docs      build the documentation into docs/_build/html"
	@echo "make bench     run the benchmarks of the core on this machine"
	@echo "make install   create .venv with what the tests need"
	@echo "make audit     search for known vulnerabilities of the pinned packages (needs a network)"
	@echo "make clean     remove the environments and all output"

# One environment for the demonstration, without compiler and tools; one for the tests, which other groups extend.
SOURCES := $(wildcard packages/*/pyproject.toml packages/*/setup.py packages/torchmcl-fleet/src/torchmcl_fleet/native/c/*)
PINS := requirements/constraints.txt requirements/install.py

$(DEMO)/.demo: packages/torchmcl/pyproject.toml packages/torchmcl-fleet/pyproject.toml requirements/demo.txt $(PINS)
	@TORCHMCL_PURE=1 $(INSTALL) $(DEMO) demo
	@touch $@

$(VENV)/.test: $(SOURCES) studies/pyproject.toml requirements/test.txt $(PINS)
	@$(INSTALL) $(VENV) test
	@touch $@

$(VENV)/.check: requirements/check.txt $(VENV)/.test
	@$(INSTALL) $(VENV) check
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.test
	@$(INSTALL) $(VENV) docs
	@touch $@

$(VENV)/.all: requirements/all.txt requirements/adapters.txt $(VENV)/.docs
	@$(INSTALL) $(VENV) all adapters
	@touch $@

install: $(VENV)/.test

demo: $(DEMO)/.demo
	$(DEMO)/bin/torchmcl demo --out out/demo

# The animation of README and documentation.
film: demo
	cp out/demo/film.gif docs/_static/

# Contracts of rules, costs and schedules against slow oracles, losses, scores, schedulers and theory.
QUICK := $(addprefix packages/torchmcl/tests/,contracts rules costs loop/test_training.py test_losses.py test_nn.py test_scoring.py test_types.py theory)

quick: $(VENV)/.test
	$(PYTEST) -m "not slow" $(QUICK)

# The core alone in an empty environment, without a compiler: only torch and numpy, and what the tests use.
pure:
	@TORCHMCL_PURE=1 $(INSTALL) $(PURE) pure
	OMP_NUM_THREADS=1 $(PURE)/bin/python $(RUN_TESTS) -m "not slow" $(QUICK)

test: $(VENV)/.test
	$(PYTEST) -m "not slow" $(FOLDER)

# The fast tests first, in the environment that they need; then the others, and property tests with more examples.
test-all: test $(VENV)/.all
	$(PYTEST) --hypothesis-profile=long --durations=25 -m "slow or hypothesis" $(FOLDER)

test-gpu: $(VENV)/.all
	$(BIN)/python -m pytest -m gpu $(FOLDER)

# Apart, because tracing every line takes a quarter of the time again.
coverage: $(VENV)/.all
	$(PYTEST) --hypothesis-profile=long --cov --cov-report=term:skip-covered

check: $(VENV)/.check
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# GALLERY=0 leaves out running the examples, which the slow tests do too.
GALLERY ?= 1
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -W --keep-going -q -D plot_gallery=$(GALLERY) -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.speed.core --out out/bench/core.json
	$(BIN)/python -m benchmarks.speed.import_time --out out/bench/import_time.json

# Pins alone, so that nothing is installed and no package needs to be built.
audit: $(VENV)/.test
	$(BIN)/python -m pip install --quiet pip-audit
	mkdir -p out && grep -v '^#' requirements/constraints.txt > out/audit.txt
	$(BIN)/pip-audit --requirement out/audit.txt --no-deps --disable-pip --strict --progress-spinner off

clean:
	rm -rf $(VENV) $(DEMO) $(PURE) out dist packages/*/build packages/*/src/*.egg-info studies/build studies/src/*.egg-info docs/_build docs/gallery docs/reference/generated .pytest_cache .mypy_cache .ruff_cache
