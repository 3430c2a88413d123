"""What pyproject.toml cannot say: loops in C, left out where they cannot be compiled."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/torchmcl_fleet/native/c")


class BuildInParallel(build_ext):
    """Compile the sources of the extension in parallel: one file for each instruction set."""

    def build_extension(self, ext: Extension) -> None:
        """Build the extension; called once for each extension."""
        compile_sources = self.compiler.compile

        def compile_in_parallel(sources: list[str], *arguments: Any, **options: Any) -> list[str]:
            with ThreadPoolExecutor() as pool:
                objects = pool.map(lambda source: compile_sources([source], *arguments, **options), sources)
                return [name for names in objects for name in names]

        self.compiler.compile = compile_in_parallel
        super().build_extension(ext)


NATIVE = Extension(
    "torchmcl_fleet.native._native",
    sources=[str(SOURCES / name) for name in ("avx512.c", "avx2.c", "baseline.c", "module.c")],
    depends=[str(path) for path in sorted(SOURCES.glob("*.h"))],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"],
    optional=True,
)

if __name__ == "__main__":
    # TORCHMCL_PURE=1 makes the wheel for all platforms that have none of their own.
    native = [] if os.environ.get("TORCHMCL_PURE") else [NATIVE]
    setup(
        ext_modules=native,
        cmdclass={"build_ext": BuildInParallel},
        options={"bdist_wheel": {"py_limited_api": "cp311"}} if native else {},
    )
