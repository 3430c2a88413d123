"""The one thing that pyproject.toml cannot say: loops in C, left out where it cannot be compiled."""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("src/torchmcl/backends/native")

setup(
    ext_modules=[
        Extension(
            "torchmcl.backends._native",
            sources=[str(SOURCES / name) for name in ("module.c", "baseline.c", "avx2.c", "avx512.c")],
            depends=[str(SOURCES / name) for name in ("native.h", "step.h", "mixture.h", "reduce.h", "variant.h")],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"],
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
