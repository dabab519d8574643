"""The types of a user's program are known to pyright and mypy, both strict: what is right passes, what is wrong is found.

`typed_program.py` is what is right, and it also runs.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(__file__).with_name("typed_program.py")
WRONG = """# pyright: strict
import asyncio

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


def checked(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    return done.stdout + done.stderr


def test_pyright_knows_the_types(wrong: Path) -> None:
    python = ["--pythonpath", sys.executable]
    found = json.loads(checked("pyright", "--outputjson", *python, str(PROGRAM), str(wrong)))["generalDiagnostics"]
    assert [each for each in found if each["file"] == str(PROGRAM)] == []
    lines = {each["range"]["start"]["line"] + 1 for each in found if each["file"] == str(wrong)}
    assert lines == wrong_lines()


def test_mypy_knows_the_types(wrong: Path) -> None:
    options = ["--strict", "--config-file=", f"--cache-dir={ROOT}/.mypy_cache", "--python-executable", sys.executable]
    said = checked("mypy", *options, str(PROGRAM), str(wrong))
    found = re.findall(r"^(\S+):(\d+): error", said, re.MULTILINE)
    assert [each for each in found if not each[0].endswith(wrong.name)] == [], said
    assert {int(line) for _, line in found} == wrong_lines(), said


def test_the_program_runs() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines() == [
        "Paris True ['greet', 'final_result']",
        "According to get_weather: 18 degrees in Rome",
    ], done.stderr
