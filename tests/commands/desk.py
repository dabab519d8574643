"""The program as somebody types it: in a folder of one's own, with a home of one's own and nothing else around."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import processes

PROGRAM = (sys.executable, "-m", "toolwire")


class Desk:
    """A home with a configuration, and the program started beside it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder / "work"
        self.config = self.home / ".config" / "toolwire" / "toolwire.toml"
        self.store = self.home / ".local" / "state" / "toolwire" / "toolwire.db"
        self.config.parent.mkdir(parents=True)
        self.folder.mkdir()
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        self.environment = {**kept, "PATH": "/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8"}

    def give_patience(self, seconds: float) -> None:
        """Set how long the program waits for the answer of a backend when it looks whether all is well."""
        folder = self.home / "patience"
        folder.mkdir(exist_ok=True)
        text = f"import toolwire.cli.probe\ntoolwire.cli.probe.PROBE_TIMEOUT = {seconds}\n"
        (folder / "sitecustomize.py").write_text(text)
        earlier = self.environment.get("PYTHONPATH")
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), earlier)))

    def configure(self, text: str) -> None:
        self.config.write_text(text)
        self.config.chmod(0o600)

    def run(self, *arguments: str, stdin: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
        return processes.run(
            [*PROGRAM, *arguments],
            cwd=self.folder,
            env={**self.environment, **more},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def good(self, *arguments: str, stdin: str = "", **more: str) -> str:
        """What a command prints that succeeds."""
        done = self.run(*arguments, stdin=stdin, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)
