"""The types of the public API are complete: for pyright in strict mode, and for mypy --strict.

`program.py` is a user's program. `--verifytypes` looks at what is installed, so it gets a copy of the package.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = [
    "tests/api_types/program.py",
]
"""Programs of users, one in each line."""
PUBLIC = [
    "toolwire",
]
"""Modules whose `__all__` is public, one in each line."""


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


def test_pyright_finds_nothing_in_a_users_program():
    done = run("pyright", *PROGRAMS)
    assert done.returncode == 0, done.stdout


def test_mypy_finds_nothing_in_a_users_program(tmp_path: Path):
    done = run("mypy", "--strict", "--cache-dir", str(tmp_path), *PROGRAMS)
    assert done.returncode == 0, done.stdout


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
    places = {f"{each.__module__}.{each.__qualname__}" for each in exported if hasattr(each, "__qualname__")}
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
