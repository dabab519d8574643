"""The types of the public API are complete: for pyright in strict mode, and for mypy --strict.

`program.py` and `agent_program.py` are programs of users; what is wrong in `WRONG` must be found. `--verifytypes` looks
at what is installed, so it gets a copy of the package.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.support import processes

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = [
    "tests/api_types/agent_program.py",
    "tests/api_types/program.py",
]
"""Programs of users, one in each line."""
PUBLIC = [
    "toolwire",
]
"""Modules whose `__all__` is public, one in each line."""


WRONG = """# pyright: strict
import asyncio

from toolwire import completion
from toolwire.agent import Agent, Context, Session, tool
from toolwire.testing import ScriptedModel

agent = Agent("demo", output_type=int, deps_type=str)


async def main() -> None:
    result = await agent.run("go", deps="Ada")
    result.output.upper()  # wrong
    await agent.run("go", deps=3)  # wrong
    await agent.run("go", session="s")  # wrong
    await agent.run(3)  # wrong
    Agent("demo", tolls=[])  # wrong
    other: Agent[None, str] = agent  # wrong
    async with agent.stream("go", deps="Ada") as run:
        run.result.output.lower()  # wrong
    print(other, result.nothing)  # wrong


@tool
def look(context: Context[str]) -> int:
    return context.deps  # wrong


@tool(parallel=True)
def double(number: int) -> int:
    return 2 * number


completion("demo", [], temprature=1)  # wrong
completion("demo", "Hello")  # wrong
completion("demo", [], stream=True)["id"]  # wrong
double("a")  # wrong
double(2).upper()  # wrong

print(ScriptedModel(3), Session().nothing)  # wrong
asyncio.run(main())
"""


def wrong_lines() -> set[int]:
    return {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong_program.py"
    path.write_text(WRONG)
    return path


def run(*command: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def faulty_lines(found: list[tuple[str, int]]) -> set[int]:
    """The lines of the faulty program that were found; nothing else may be."""
    assert [each for each in found if not each[0].endswith("wrong_program.py")] == []
    return {line for _, line in found}


def test_pyright_finds_what_is_wrong_in_users_programs_and_nothing_else(wrong: Path):
    done = run("pyright", "--outputjson", "--pythonpath", sys.executable, *PROGRAMS, str(wrong))
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert faulty_lines([(each["file"], each["range"]["start"]["line"] + 1) for each in found]) == wrong_lines()


def test_mypy_finds_what_is_wrong_in_users_programs_and_nothing_else(wrong: Path):
    options = ["--strict", "--config-file=", "--python-executable", sys.executable]
    done = run("mypy", *options, *PROGRAMS, str(wrong))
    found = re.findall(r"^(\S+):(\d+): error", done.stdout, re.MULTILINE)
    assert faulty_lines([(file, int(line)) for file, line in found]) == wrong_lines()


def test_the_program_with_an_agent_runs():
    done = processes.run([sys.executable, str(HERE / "agent_program.py")], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == [
        "Paris True ['greet', 'final_result']",
        "According to get_weather: 18 degrees in Rome",
    ], done.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What pyright says about the types of the installed package."""
    folder, empty = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    shutil.copytree(ROOT / "src" / "toolwire", packages / "toolwire", ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    path = os.pathsep.join((str(folder / "bin"), os.environ["PATH"]))  # it asks the first python for packages
    done = run("pyright", "--verifytypes", "toolwire", "--ignoreexternal", "--outputjson", cwd=empty, PATH=path)
    return json.loads(done.stdout)["typeCompleteness"]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_symbol_has_a_type(report: dict[str, Any], module: str):
    public = importlib.import_module(module)
    exported = [getattr(public, name) for name in public.__all__]
    # Errors have the name of their package; pyright names the module that defines them.
    modules = (each for each in exported if isinstance(each, type) and issubclass(each, public.ToolwireError))
    places = {f"toolwire.core.errors.{each.__name__}" for each in modules}
    places |= {f"{each.__module__}.{each.__qualname__}" for each in exported if hasattr(each, "__qualname__")}
    symbols = {symbol["name"]: symbol for symbol in report["symbols"]}
    unknown = [
        name
        for name, symbol in symbols.items()
        if any(name == place or name.startswith(f"{place}.") for place in places)
        and symbol["isExported"]
        and (symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"])
    ]
    assert unknown == []
    assert places & symbols.keys()
