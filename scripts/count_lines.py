"""Lines of src by package; fails when src has grown beyond the number in pyproject.toml plus a small allowance."""

import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALLOWANCE = 300


def count() -> Counter[str]:
    """Count the lines of each package; a top-level module counts as a package."""
    lines: Counter[str] = Counter()
    source = ROOT / "src/toolwire"
    for path in source.rglob("*.py"):
        lines[path.relative_to(source).parts[0]] += path.read_bytes().count(b"\n")
    return lines


def main() -> int:
    limit = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["toolwire"]["lines"]["src"]
    lines = count()
    total = lines.total()
    print(", ".join(f"{name} {number:,}" for name, number in lines.most_common(15)))
    print(f"src has {total:,} lines; pyproject.toml says {limit:,}.")
    if total > limit + ALLOWANCE:
        print(f"It may grow by {ALLOWANCE} at most. Remove lines, or raise tool.toolwire.lines.src.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
