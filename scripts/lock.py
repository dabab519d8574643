"""Pins the dependencies of pyproject.toml into requirements*.txt, without naming any index."""

import json
import re
import subprocess
import sys
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
    """Write the files, each with what the ones before it lack; the last one includes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = {
        "requirements.txt": [*project["project"]["dependencies"], *project["build-system"]["requires"]],
        "requirements-extras.txt": [each for extra in sorted(extras) for each in extras[extra]],
        "requirements-dev.txt": project["dependency-groups"]["dev"],
    }
    pinned: list[str] = []
    for name, requirements in wanted.items():
        found = resolve([*requirements, *pinned])
        lines = with_conditions([pin for pin in found if pin not in pinned], requirements)
        if name == "requirements-dev.txt":
            lines = ["-r requirements.txt", "-r requirements-extras.txt", *lines]
        (ROOT / name).write_text(HEAD + "\n".join(lines) + "\n")
        pinned = found


if __name__ == "__main__":
    main()
