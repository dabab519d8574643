"""Pins the dependencies of pyproject.toml into requirements*.txt, without naming any index."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAD = "# Written by `make lock` from pyproject.toml.\n"


def resolve(wanted: list[str], constraints: list[str]) -> list[str]:
    """The exact versions pip would install for these requirements, with those it must not go beyond."""
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
            "--constraint",
            "/dev/stdin",
            *wanted,
        ],
        input="\n".join(constraints),
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
    """Write the files, each with what the files lack that are installed before it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    groups = project["dependency-groups"]
    run, extra, dev, docs = (f"requirements{each}.txt" for each in ("", "-extras", "-dev", "-docs"))
    wanted = {
        run: ([*project["project"]["dependencies"], *project["build-system"]["requires"]], ()),
        extra: ([each for name in sorted(extras) for each in extras[name]], (run,)),
        dev: (groups["dev"], (run, extra)),
        docs: (groups["docs"], (run,)),
    }
    pinned: dict[str, list[str]] = {}
    for name, (requirements, before) in wanted.items():
        found = resolve(requirements, [pin for pins in pinned.values() for pin in pins])
        pinned[name] = [pin for pin in found if not any(pin in pinned[each] for each in before)]
        included = [f"-r {each}" for each in before] if name != extra else []  # the extras are used as constraints
        (ROOT / name).write_text(HEAD + "\n".join([*included, *with_conditions(pinned[name], requirements)]) + "\n")


if __name__ == "__main__":
    main()
