"""Patches by Codex's own program: `apply_patch` does what Codex does, and refuses what Codex refuses."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.agent.test_patch import ABCD, DONE, REFUSED, files_of, got, put
from tests.clients.test_js_clients import FOLDER

PACKAGES = FOLDER / "node_modules/@openai"


@pytest.fixture(scope="session")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Codex's own program for patches: it goes by its name."""
    programs = sorted(PACKAGES.glob("codex-*/vendor/*/bin/codex"))
    if not programs:
        pytest.skip("needs the Codex CLI that `make clients` installs")
    folder = tmp_path_factory.mktemp("codex")
    (folder / "apply_patch").symlink_to(programs[0])
    return folder / "apply_patch"


def ask(codex: Path, folder: Path, text: str) -> int:
    home = str(codex.parent)
    env = {"HOME": home, "CODEX_HOME": home, "PATH": os.environ["PATH"]}
    return subprocess.run(
        [codex], input=text.encode(), cwd=folder, env=env, capture_output=True, timeout=60, check=False
    ).returncode


@pytest.mark.parametrize("case", DONE)
def test_codex_does_the_same(codex: Path, tmp_path: Path, case: str):
    before, text, after = DONE[case]
    put(tmp_path, files_of(before))
    assert ask(codex, tmp_path, text) == 0
    assert got(tmp_path) == files_of(after)


@pytest.mark.parametrize("case", REFUSED)
def test_codex_refuses_the_same(codex: Path, tmp_path: Path, case: str):
    put(tmp_path, {"f": ABCD, "folder/x": "x"})
    assert ask(codex, tmp_path, REFUSED[case][0]) != 0
