"""Makes small faults in src, one at a time, and reports which command's tests detect each.

    .venv/bin/python scripts/mutants.py --seed 14 --count 24 gateway memory agent/mcp

Run it in a clone without changes: a fault is written into the file, the commands run until the first failure, and the
file is restored. The same seed and source give the same faults.
"""

import argparse
import ast
import os
import random
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/toolwire"
TESTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
COMMANDS = {"test": TESTS, "system": ["tests/system"], "clients": ["tests/clients"]}
LIMIT = 1800
"""Timeout of a command in seconds; a fault that causes a timeout counts as detected."""
LIKELY = {"memory": "tests/store", "agent": "tests/agent", "check": "tests/check", "cli": "tests/commands"}
"""The tests that run first for a package; for any other package, `tests/gateway` runs first."""

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Mutant(msgspec.Struct, frozen=True):
    """A fault: the text of a file with one expression replaced."""

    path: Path
    line: int
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCE)}:{self.line}: {self.before} -> {self.after}"


def replacements(node: ast.AST) -> Iterator[ast.expr]:
    """What may stand in the place of an expression."""
    match node:
        case ast.Compare(left, [op], comparators) if type(op) in OPPOSITE:
            yield ast.Compare(left, [OPPOSITE[type(op)]()], comparators)
        case ast.BoolOp(ast.And(), values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            yield ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, ast.Add(), right):
            yield ast.BinOp(left, ast.Sub(), right)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Await(value=ast.Call()) | ast.Call(func=ast.Attribute()) if isinstance(node, ast.expr):
            yield ast.Constant(None)
        case _:
            return


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every fault of a file, within functions and outside of annotations."""
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = source.encode()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in function.body:
            for node in ast.walk(statement):
                for made in replacements(node):
                    assert isinstance(node, ast.expr)
                    assert node.end_lineno is not None
                    assert node.end_col_offset is not None
                    start = starts[node.lineno - 1] + node.col_offset
                    end = starts[node.end_lineno - 1] + node.end_col_offset
                    after = ast.unparse(ast.fix_missing_locations(made))
                    text = (data[:start] + f"({after})".encode() + data[end:]).decode()
                    before = " ".join(data[start:end].decode().split())
                    yield Mutant(path, node.lineno, before, after, text)


def choose(packages: list[str], seed: int, count: int) -> list[Mutant]:
    """Choose faults from each package in turn, in different files where possible."""
    chance = random.Random(seed)
    chosen: list[Mutant] = []
    for number in range(count):
        folder = SOURCE / packages[number % len(packages)]
        files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
        fresh = [path for path in files if path not in {each.path for each in chosen}] or files
        found: list[Mutant] = []
        while not found:
            found = [*mutants_of(chance.choice(fresh))]
        chosen.append(chance.choice(found))
    return chosen


def noticed_by(command: str, package: str) -> str:
    """Run the tests of a command; return the first that fails, or "" if all pass."""
    likely = LIKELY.get(package, "tests/gateway")
    paths = sorted(COMMANDS[command], key=lambda path: path != likely)
    options = ["-q", "-x", "-n", "4", "--dist", "load", "--maxschedchunk", "20", "-p", "no:cacheprovider"]
    run = [sys.executable, "-m", "pytest", *options, *paths]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        done = subprocess.run(
            run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return "a time limit"
    if done.returncode == 0:
        return ""
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failures[0].split()[1] if failures else f"exit {done.returncode}"


def find(mutant: Mutant, commands: list[str]) -> tuple[str, str]:
    """The first command that notices a fault, and its test."""
    package = mutant.path.relative_to(SOURCE).parts[0]
    for command in commands:
        if test := noticed_by(command, package):
            return command, test
    return "survived", ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("packages", nargs="+", help="packages or files below src/toolwire")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--count", type=int, default=24)
    options.add_argument("--first", type=int, default=1, help="number of the first fault to try")
    options.add_argument("--commands", default=",".join(COMMANDS))
    options.add_argument("--list", action="store_true", help="show the faults and run nothing")
    given = options.parse_args()
    if subprocess.run(["git", "status", "--porcelain", "src"], cwd=ROOT, capture_output=True, check=True).stdout:
        print("src has changes; run this in a clean clone", file=sys.stderr)
        return 2
    survived = 0
    for number, mutant in enumerate(choose(given.packages, given.seed, given.count), 1):
        if number < given.first:
            continue
        if given.list:
            print(number, mutant)
            continue
        original = mutant.path.read_text()
        mutant.path.write_text(mutant.text)
        begun = time.monotonic()
        try:
            caught, test = find(mutant, given.commands.split(","))
        finally:
            mutant.path.write_text(original)
        survived += caught == "survived"
        print(f"{number:3} {caught:9} {time.monotonic() - begun:5.0f} s  {mutant}  {test}", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
