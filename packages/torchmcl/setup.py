"""What pyproject.toml cannot say: loops in C, left out where they cannot be compiled, and addresses."""

import os
import re
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
SOURCES = Path("src/torchmcl/accel/native/c")
ADDRESSES = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["torchmcl"]


def project_urls(repository: str, documentation: str) -> dict[str, str]:
    """Return the links of the package page."""
    links = {"Documentation": documentation}
    if repository:
        links |= {
            "Source": repository,
            "Issues": f"{repository}/issues",
            "Changes": f"{repository}/blob/main/CHANGELOG.md",
        }
    return {name: address for name, address in links.items() if address}


def readme(text: str, repository: str) -> str:
    """Return the README with absolute addresses, for pages on which its relative ones lead nowhere."""
    if not repository:
        return text
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{repository}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\1{repository}/blob/main/", text)


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
    "torchmcl.accel.native._native",
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
        long_description=readme((ROOT / "README.md").read_text(encoding="utf-8"), ADDRESSES["repository"]),
        long_description_content_type="text/markdown",
        project_urls=project_urls(**ADDRESSES),
        ext_modules=native,
        cmdclass={"build_ext": BuildInParallel},
        options={"bdist_wheel": {"py_limited_api": "cp311"}} if native else {},
    )
