"""Coverage by package, from the data of `make coverage`; fails where it is below the floor in pyproject.toml."""

import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path, PurePath

import msgspec

ROOT = Path(__file__).parent.parent


def measure() -> dict[str, tuple[int, int]]:
    """Count the statements and covered statements of each package; a top-level module counts as a package."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "coverage.json")
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", report], cwd=ROOT, check=True)
        files = msgspec.json.decode(report.read_bytes())["files"]
    statements: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    for path, found in files.items():
        parts = PurePath(path).relative_to("src/toolwire").parts
        package = parts[0].removesuffix(".py")
        name = "check/turns" if parts[:2] == ("check", "turns") else package
        statements[name] += found["summary"]["num_statements"]
        covered[name] += found["summary"]["covered_lines"]
    return {name: (statements[name], covered[name]) for name in sorted(statements)}


def main() -> int:
    floors = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["toolwire"]["coverage"]
    below = 0
    print(f"{'package':16} {'statements':>10} {'covered':>8} {'floor':>6}")
    for name, (statements, covered) in measure().items():
        share = 100 * covered / statements if statements else 100.0
        floor = floors.get(name, floors["others"])
        below += share < floor
        print(f"{name:16} {statements:>10,} {share:>7.1f}% {floor:>5}%{'  BELOW' if share < floor else ''}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
