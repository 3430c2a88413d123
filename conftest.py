"""Shared set-up: every test starts from the same random state, property tests are repeatable, whole files are slow."""

import importlib.util

import hypothesis
import pytest
import torch

# `make test-all` selects the long profile.
for _profile, _examples in (("short", 12), ("long", 60)):
    hypothesis.settings.register_profile(
        _profile, max_examples=_examples, deadline=None, derandomize=True, database=None, print_blob=False
    )
hypothesis.settings.load_profile("short")

# Files that cannot be imported without a package that only `make test-all` installs.
NEEDED_BY = {
    "triton": (
        "*/torchmcl_fleet/gpu/*.py",
        "*/torchmcl_speech/kernels/*.py",
        "*/tests/gpu/*.py",
        "*/tests/kernels/*.py",
    ),
    "sktime": ("*/adapters/of_sktime.py",),
}
collect_ignore_glob = [
    *(glob for package, globs in NEEDED_BY.items() if importlib.util.find_spec(package) is None for glob in globs),
    "*conftest.py",  # several have the same name, and no examples
    "*program.py",  # trains when it is imported
]

# Files and folders that only `make test-all` runs; single slow tests of other files have the marker themselves.
SLOW = (
    "integration/",
    "kernels/",
    "gpu/",
    "adapters/of_sktime",
    "contracts/test_compiled_schedules",
    "estimators/test_coverage",
    "torchmcl-fleet/tests/test_awkward_modules",
    "torchmcl-fleet/tests/test_fleet_combinations",
    "torchmcl-fleet/tests/test_fleet_sharding",
    "test_cluster",
    "test_demo",
    "test_estimator_combinations",
    "test_exported_estimators",
    "test_exported_separators",
    "test_every_flag",
    "test_exporting",
    "test_figures",
    "test_fine_tuning",
    "test_gallery",
    "test_kernels_of_networks",
    "test_lightning_nodes",
    "test_missing_packages",
    "test_numerical_soak",
    "test_quantizers",
    "test_separation_study",
    "test_serving",
    "test_table_cli",
    "test_table_report",
    "test_trajectory_study",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow files."""
    for item in items:
        place = item.path.as_posix()
        if any(f"/{name}" in place for name in SLOW) or "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start from the same random state."""
    torch.manual_seed(0)
