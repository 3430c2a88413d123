"""What pyproject.toml cannot say: the addresses of the project."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
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


if __name__ == "__main__":
    setup(
        long_description=readme((ROOT / "README.md").read_text(encoding="utf-8"), ADDRESSES["repository"]),
        long_description_content_type="text/markdown",
        project_urls=project_urls(**ADDRESSES),
    )
