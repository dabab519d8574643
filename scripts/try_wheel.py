"""Tests a wheel in a clean environment with only its pinned dependencies, from an empty directory.

    python scripts/try_wheel.py dist/toolwire-0.1.0-py3-none-any.whl

Needs only the standard library and pip or uv. The exit code is 1 if a check fails.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

ROOT = Path(__file__).parent.parent
TIMEOUT = 300
HIDDEN = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PYTHONPATH")
MAX_PACKAGES = 32


def main() -> None:
    """Try the wheel that the command line names."""
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="toolwire-") as folder:
        python = make_environment(Path(folder) / "clean", wheel)
        count = count_packages(python)
        assert count <= MAX_PACKAGES, f"{count} packages are installed"
        try_program(python.with_name("toolwire"), Path(folder), wheel.name.split("-")[1])
    print(f"{wheel.name} works in a clean environment of {count} packages")


def make_environment(folder: Path, wheel: Path) -> Path:
    """Create an environment with the wheel and its pinned dependencies; return its interpreter."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    if shutil.which("uv"):
        install = ["uv", "pip", "install", "--python", str(python)]
    else:
        install = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    subprocess.run([*install, "--quiet", "--constraint", str(ROOT / "requirements.txt"), str(wheel)], check=True)
    return python


def count_packages(python: Path) -> int:
    """How many packages an environment has, with Toolwire."""
    show = "from importlib.metadata import distributions; print(len({each.name for each in distributions()}))"
    return int(subprocess.run([python, "-c", show], check=True, capture_output=True, text=True).stdout)


def try_program(program: Path, folder: Path, version: str) -> None:
    """Run the installed `toolwire` in an empty directory below a folder; raises AssertionError if it does not work."""
    empty = folder / "empty"
    empty.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN and "proxy" not in name.lower()}
    state, config = str(folder / "state"), str(folder / "config")
    environment = {**kept, "HOME": str(folder), "XDG_STATE_HOME": state, "XDG_CONFIG_HOME": config}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [program, *arguments],
            cwd=empty,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    asked = run("--version")
    assert asked.stdout == f"toolwire {version}\n", asked
    with serving(program, empty, environment) as url:
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
        request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        with build_opener(ProxyHandler({})).open(request, timeout=TIMEOUT) as answer:
            assert json.load(answer)["choices"][0]["finish_reason"] == "stop"
    asked = run("run", "-m", "demo", "hello")
    assert asked.returncode == 0, asked
    assert asked.stdout, asked
    asked = run("check", "--help")
    assert (asked.returncode, "--report" in asked.stdout) == (0, True), asked
    servers = folder / "servers.json"
    servers.write_text('{"mcpServers": {"files": {"command": "files-server"}}}')
    asked = run("run", "-m", "demo", "--mcp", str(servers), "hello")
    assert (asked.returncode, asked.stdout, asked.stderr.count("\n")) == (2, "", 1), asked
    assert "MCP servers need the package mcp" in asked.stderr, asked
    assert not [*empty.iterdir()], "something was written to the working directory"


@contextmanager
def serving(program: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """A gateway on a free port, by its address."""
    command = [program, "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines: list[str] = []
            for line in process.stderr:
                lines.append(line)
                if line.startswith("toolwire ready on "):
                    break
            else:
                raise AssertionError(f"it did not start: {lines}")
            yield lines[-1].split()[-1]
        finally:
            process.terminate()
            process.stderr.read()


if __name__ == "__main__":
    main()
