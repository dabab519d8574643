"""Pins the dependencies of pyproject.toml into requirements.txt and requirements-dev.txt, without naming any index."""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAD = "# Written by `make lock` from pyproject.toml.\n"


def resolve(wanted: list[str]) -> list[str]:
    """The exact versions pip would install for these requirements."""
    report = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--report",
            "-",
            *wanted,
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = json.loads(report)["install"]
    return sorted(f"{each['metadata']['name'].lower()}=={each['metadata']['version']}" for each in found)


def with_conditions(pinned: list[str], wanted: list[str]) -> list[str]:
    """The pins, with the condition under which pyproject.toml wants them."""
    conditions = {re.split(r"[<>=!;\[ ]", each)[0]: each.partition(";")[2].strip() for each in wanted}
    return [f"{pin}; {found}" if (found := conditions.get(pin.partition("==")[0])) else pin for pin in pinned]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    run = resolve([*project["project"]["dependencies"], *project["build-system"]["requires"]])
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pinned:
        pinned.write("\n".join(run))
        pinned.flush()
        everything = resolve([*project["dependency-groups"]["dev"], "-r", pinned.name])
    pins = with_conditions(run, project["project"]["dependencies"])
    (ROOT / "requirements.txt").write_text(HEAD + "\n".join(pins) + "\n")
    extra = [line for line in everything if line not in run]
    (ROOT / "requirements-dev.txt").write_text(HEAD + "-r requirements.txt\n" + "\n".join(extra) + "\n")


if __name__ == "__main__":
    main()
