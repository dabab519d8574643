"""The package as users get it: a wheel in an environment of its own, run from an empty directory."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import toolwire
from tests.support.gateway import PROXIES, chat_body

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that nothing is left in the repository."""
    copy = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True)
    [made] = copy.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`toolwire` in a clean environment that has the wheel, and only the dependencies of this one."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    install = ["-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([sys.executable, *install, "--disable-pip-version-check", str(wheel)], check=True)
    return folder / "bin" / "toolwire"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    hidden = (*PROXIES, "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}


def test_the_wheel_says_who_made_it_and_holds_nothing_but_the_package(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [archive.read(name).decode() for name in names if name.endswith("/METADATA")]
    assert {name.split("/")[0] for name in names} == {"toolwire", f"toolwire-{toolwire.__version__}.dist-info"}
    assert "toolwire/py.typed" in names
    assert {path.relative_to(ROOT / "src").as_posix() for path in ROOT.glob("src/toolwire/**/*.py")} <= {*names}
    for line in ("Author: Toolwire contributors", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
        assert line in metadata.split("\n")
    assert "Requires-Dist: aiohttp<3.15,>=3.14" in metadata


def test_the_program_says_its_version(program: Path, tmp_path: Path, environment: dict[str, str]):
    asked = subprocess.run(
        [program, "--version"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert asked.stdout == f"toolwire {toolwire.__version__}\n"


@pytest.fixture
def url(program: Path, tmp_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of the installed gateway, which was started in an empty directory."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with subprocess.Popen(
        [program, "serve", "--port", "0"], cwd=empty, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if line.startswith("toolwire ready on "))
        yield ready.split()[-1]
        process.terminate()
        process.stderr.read()
    assert not [*empty.iterdir()]


def test_the_installed_gateway_serves_from_an_empty_directory(url: str, http: httpx.Client):
    answer = http.post(f"{url}/v1/chat/completions", json=chat_body("demo"))
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


def test_the_library_alone_loads_msgspec_and_nothing_else():
    """Whoever needs the aggregator does not pay for a server."""
    show = (
        "import sys; before = {*sys.modules}; import toolwire, json; print(json.dumps(sorted({*sys.modules} - before)))"
    )
    asked = subprocess.run([sys.executable, "-c", show], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in json.loads(asked.stdout)}
    loaded.discard("typing_extensions")  # which msgspec uses where it is installed
    assert loaded - sys.stdlib_module_names == {"msgspec", "toolwire"}
    assert not loaded & {"asyncio", "http", "ssl"}
