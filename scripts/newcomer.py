"""The first ten minutes of somebody new: the README to the letter in a clean clone, then what it does not mention.

    python scripts/newcomer.py [--keep]

Prints a transcript to be read: every command, what it printed, and how long it took. The exit code is 1 if a command
did not end as it should. It needs git, make and curl, and nothing of this repository's own environment.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
URL = "http://127.0.0.1:8787"
MOST_LINES = 25
PIPED: Any = {"text": True, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
CHAT = f"curl -s {URL}/v1/chat/completions -H 'content-type: application/json' -d"
HELLO = '{"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}'
SERVE = ".venv/bin/toolwire serve"
KEYLESS = "printf '[[backends]]\\npreset = \"deepseek\"\\n'"
UNSET = "DEEPSEEK_API_KEY is not set"


class Step(NamedTuple):
    """One command, the exit code that it should have, and words that should be in what it prints."""

    command: str
    words: str = ""
    code: int = 0


BEYOND = (
    Step(f"curl -s {URL}/", "Toolwire console"),
    Step(f"curl -s {URL}/v1/models", '"demo"'),
    Step(
        CHAT + """ '{"model": "gpt-6", "messages": [{"role": "user", "content": "Hi"}]}'""", "OPENAI_API_KEY is not set"
    ),
    Step(CHAT + """ '{"model": "demo", "messages": "Hi"}'""", "messages"),
    Step(f"curl -s {URL}/chat/completions -d 'not json'", "JSON"),
    Step(f"curl -s {URL}/v1/complete -d '{{}}'", "not served here"),
    Step(".venv/bin/toolwire", "Commands"),
    Step(".venv/bin/toolwire --version", "toolwire "),
    Step(".venv/bin/toolwire sevre", "serve", 2),
    Step(".venv/bin/toolwire doctor", "demo"),
    Step(".venv/bin/toolwire models", "demo"),
    Step(".venv/bin/toolwire config", "[server]"),
    Step(".venv/bin/toolwire env claude", "ANTHROPIC_BASE_URL"),
    Step(".venv/bin/toolwire init --preset ollama --model qwen3-coder --yes", "toolwire.toml"),
    Step(
        ".venv/bin/toolwire init --url 127.0.0.1:8787 --yes -c other.toml", "/v1: Chat Completions, the Responses API"
    ),
    Step(".venv/bin/toolwire models -c other.toml", "demo"),
    Step(".venv/bin/toolwire launch -- env", f"OPENAI_BASE_URL={URL}/v1"),
    Step(".venv/bin/toolwire run 'Hello there'", "demo"),
    Step("echo 'Hello there' | .venv/bin/toolwire run - --model demo", "demo"),
    Step(".venv/bin/toolwire serve", "another toolwire (pid ", 2),  # the port is taken
    Step(f"timeout -s INT 20 {SERVE} --port 0", "toolwire ready on http://127.0.0.1:", 124),
    # A backend without its key stops nothing else.
    Step(f"{KEYLESS} > keyless.toml; timeout -s INT 20 {SERVE} --port 0 -c keyless.toml", UNSET, 124),
    Step(".venv/bin/toolwire models -c keyless.toml", UNSET),
    Step(".venv/bin/toolwire doctor -c keyless.toml", UNSET, 1),
    Step(".venv/bin/toolwire run -c keyless.toml -m demo 'Hello there'", "demo"),
    Step(".venv/bin/toolwire run -c keyless.toml -m deepseek-chat 'Hello there'", UNSET, 2),
    Step(f"(echo '[server]'; echo 'strict_start = true'; {KEYLESS}) > strict.toml; {SERVE} -c strict.toml", UNSET, 2),
    Step("cp keyless.toml toolwire.toml; .venv/bin/toolwire models; rm toolwire.toml", "pass --config toolwire.toml"),
    # The key that clients get where none is needed is not refused.
    Step(CHAT.replace("-d", "-H 'authorization: Bearer unused' -d") + f" '{HELLO}'", "demo"),
    Step("make", "make test"),
)


def main() -> None:
    """Walk, and say at the end what went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="do not remove the clone")
    keep = parser.parse_args().keep
    folder = Path(tempfile.mkdtemp(prefix="newcomer-"))
    try:
        faults = Walk(folder).walk()
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{len(faults)} commands did not end as they should" if faults else "\nAll commands ended as they should")
    for fault in faults:
        print(f"  {fault}")
    sys.exit(1 if faults else 0)


class Walk:
    """A clean clone, a home of its own, and what was not as it should be."""

    def __init__(self, folder: Path) -> None:
        self._clone = folder / "toolwire"
        home = folder / "home"
        home.mkdir()
        secrets = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|^PROXY_|^VIRTUAL_ENV$|^PYTHON")
        self._environment = {name: value for name, value in os.environ.items() if not secrets.search(name)}
        self._environment |= {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
        }
        self._faults: list[str] = []

    def walk(self) -> list[str]:
        """Everything, in the order of the README. Returns the commands that failed."""
        readme = (ROOT / "README.md").read_text()
        self._do(Step(f"git clone --quiet {ROOT} {self._clone}"), self._clone.parent)
        server = self._serve()
        try:
            for step in _steps_of(readme, "Thirty seconds to the first tool call"):
                self._do(step, self._clone)
            for step in _steps_of((ROOT / "docs/demo.md").read_text(), "A whole conversation"):
                self._do(step, self._clone)
            for step in BEYOND:
                self._do(step, self._clone)
        finally:
            os.killpg(server.pid, signal.SIGINT)  # as Ctrl-C does
            self._show(server.communicate(timeout=60)[0], time.monotonic())
        return self._faults

    def _serve(self) -> "subprocess.Popen[str]":
        started = time.monotonic()
        print("$ make serve &", flush=True)
        server = subprocess.Popen(
            ["make", "serve"], cwd=self._clone, env=self._environment, start_new_session=True, **PIPED
        )
        assert server.stdout is not None
        for line in server.stdout:
            print(f"  {line}", end="", flush=True)
            if line.startswith("toolwire ready on "):
                print(f"  ({time.monotonic() - started:.1f} s)")
                return server
        sys.exit("The gateway did not start.")

    def _do(self, step: Step, folder: Path) -> None:
        print(f"$ {step.command}", flush=True)
        started = time.monotonic()
        command = ["bash", "-c", step.command]
        done = subprocess.run(
            command,
            cwd=folder,
            env=self._environment,
            timeout=300,
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._show(done.stdout, started)
        if done.returncode != step.code or step.words not in done.stdout:
            self._faults.append(f"{step.command[:100]}: exit code {done.returncode}, {step.words!r} expected")
            print("  ^ not as it should be")

    def _show(self, output: str, started: float) -> None:
        lines = output.splitlines()
        for line in lines[:MOST_LINES]:
            print(f"  {line[:300]}")
        if len(lines) > MOST_LINES:
            print(f"  … {len(lines) - MOST_LINES} more lines")
        print(f"  ({time.monotonic() - started:.1f} s)", flush=True)


def _steps_of(page: str, title: str) -> list[Step]:
    """What a section lets one type, after the clone: its shell blocks, and its Python block as a program."""
    section = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
    steps: list[Step] = []
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        if block.startswith("git clone"):
            continue
        if language == "sh":
            steps.append(Step(f"PATH=$PWD/.venv/bin:$PATH; {block.strip()}"))
        else:
            install = ".venv/bin/python -m pip install --quiet --disable-pip-version-check openai"
            steps.append(Step(f"{install} && .venv/bin/python - <<'END'\n{block}END", "18 degrees, sunny"))
    return steps


if __name__ == "__main__":
    main()
