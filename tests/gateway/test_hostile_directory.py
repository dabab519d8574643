"""Commands typed inside a repository that a stranger wrote: nothing of it is read, imported or run."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.agent.terminal import Terminal
from tests.support.gateway import PROXIES, backend, chat_body
from tests.support.upstream import Upstream
from toolwire.config.files import why_untrusted

PROGRAMS = {"toolwire": (str(Path(sys.executable).with_name("toolwire")),), "-m": (sys.executable, "-m", "toolwire")}
MODULES = (
    "sitecustomize",
    "usercustomize",
    "mytools",
    "yaml",
    "rich",
    "uvicorn",
    "aiohttp",
    "mcp",
    "click",
)
"""What Python, we and our tools import, or try to."""

each_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="another user: only root can give files to others")


class Clone:
    """A repository full of traps, in which somebody stands, and that somebody's home."""

    def __init__(self, folder: Path, upstream: Upstream) -> None:
        self.folder, self.home, self.mark = folder / "clone", folder / "home", folder / "trapped"
        self.config = self.home / ".config/toolwire/toolwire.toml"
        self.folder.mkdir()
        self.config.parent.mkdir(parents=True)
        trap = (
            f"import pathlib, sys\npathlib.Path({str(self.mark)!r}).open('a').write(f'{{__name__}} {{sys.argv}}\\n')\n"
        )
        for module in MODULES:
            (self.folder / f"{module}.py").write_text(f"{trap}def get_time() -> str:\n    return 'stolen'\n")
        server = f'{{"mcpServers": {{"s": {{"command": "sh", "args": ["-c", "echo mcp >> {self.mark}"]}}}}}}'
        for name in ("mcp.json", ".mcp.json", "servers.json"):
            (self.folder / name).write_text(server)
        (self.folder / ".env").write_text(f"OPENAI_BASE_URL={upstream.url}\nCODEX_DUMP_SSE=1\n")
        (self.folder / "toolwire.toml").write_text(
            '[gateway_tools]\ntools = ["mytools:get_time"]\nmcp = "mcp.json"\n'
            + backend(upstream.url, "demo", models='["demo"]', api_key_env='"OPENAI_API_KEY"')
        )

    @property
    def trapped(self) -> str:
        return self.mark.read_text() if self.mark.exists() else ""

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in PROXIES and not key.startswith("XDG_")}
        state = {"XDG_STATE_HOME": str(self.home / "state")}
        return {**kept, **state, "HOME": str(self.home), "OPENAI_API_KEY": "sk-mine", "PYTHONPATH": ""}

    def run(self, *argv: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            argv,
            cwd=self.folder,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def serve(self, *argv: str, **more: str) -> "Serving":
        return Serving(self, argv, more)


class Serving:
    """A gateway that was started in the clone, up to its ready line."""

    def __init__(self, clone: Clone, argv: tuple[str, ...], more: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [*argv, "--port", "0"],
            cwd=clone.folder,
            env={**clone.environment, **more},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self.said: list[str] = []
        for line in self._process.stderr:
            self.said.append(line.rstrip("\n"))
            if "ready on" in line:
                break
        self.url = self.said[-1].split()[-1]

    def __enter__(self) -> "Serving":
        assert self._process.poll() is None, self.said
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=120)


@pytest.fixture
def clone(tmp_path: Path, upstream: Upstream) -> Clone:
    return Clone(tmp_path, upstream)


@each_program
@pytest.mark.parametrize("command", [("run", "Hello", "--model", "demo"), ("replay", "tape.jsonl"), ("check", "x")])
def test_nothing_of_the_directory_is_read_or_run(
    clone: Clone, upstream: Upstream, program: tuple[str, ...], command: tuple[str, ...]
) -> None:
    before = len(upstream.asked)
    done = clone.run(*program, *command)
    assert done.returncode == (0 if command[0] == "run" else 2), done
    assert clone.trapped == ""
    assert len(upstream.asked) == before
    assert not (clone.folder / "recordings").exists()


def test_the_users_own_configuration_is_read(clone: Clone) -> None:
    clone.config.write_text("[server]\nprot = 1\n")
    done = clone.run(*PROGRAMS["toolwire"], "run", "Hello")
    assert (done.returncode, done.stderr) == (
        2,
        "toolwire: ./toolwire.toml is ignored, because only serve reads it by default; "
        "to use it, pass --config toolwire.toml\n"
        f"toolwire: {clone.config}: server.prot: unknown key; did you mean port?\n",
    )
    elsewhere = clone.home / "other/toolwire/toolwire.toml"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text("[server]\nport = 'x'\n")
    done = clone.run(*PROGRAMS["toolwire"], "run", "Hello", XDG_CONFIG_HOME=str(clone.home / "other"))
    assert f"{elsewhere}: server.port" in done.stderr


def test_a_relative_home_of_configurations_does_not_count(clone: Clone) -> None:
    """It would be one in the clone."""
    hostile = clone.folder / "toolwire/toolwire.toml"
    hostile.parent.mkdir()
    hostile.write_text("[server]\nprot = 1\n")
    assert clone.run(*PROGRAMS["toolwire"], "run", "Hello", XDG_CONFIG_HOME=".").returncode == 0
    assert clone.run(*PROGRAMS["toolwire"], "run", "Hello", HOME=".", XDG_CONFIG_HOME="").returncode == 0


@each_program
@pytest.mark.parametrize("named", [True, False], ids=["--config", "the user's"])
def test_what_a_configuration_names_is_looked_up_beside_it(
    clone: Clone, program: tuple[str, ...], named: bool, http: httpx.Client
) -> None:
    beside = clone.config.parent
    clone.config.write_text(
        '[store]\nurl = "sqlite:kept.db"\n[debug]\nrecord = "tapes"\n'
        '[gateway_tools]\ntools = ["mytools:get_time"]\nmcp = "servers.json"\n'
    )
    (beside / "mytools.py").write_text("def get_time() -> str:\n    return 'noon'\n")
    (beside / "servers.json").write_text(
        '{"mcpServers": {"s": {"command": "./server.sh", "cwd": "."}, "t": {"command": "sh", "args": ["-c", "pwd > t"]}}}'
    )
    (beside / "server.sh").write_text("#!/bin/sh\npwd > s\n")
    (beside / "server.sh").chmod(0o755)
    (clone.folder / "server.sh").write_text(f"#!/bin/sh\necho >> {clone.mark}\n")
    (clone.folder / "server.sh").chmod(0o755)
    (clone.folder / "toolwire.toml").unlink()
    options = ("--config", str(clone.config)) if named else ()
    with clone.serve(*program, "serve", *options) as gateway:
        body = chat_body("demo", messages=[{"role": "user", "content": "Call get_time"}])
        answer = http.post(f"{gateway.url}/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == "According to get_time: noon"
        assert http.post(f"{gateway.url}/v1/responses", json={"model": "demo", "input": "Hi"}).status_code == 200
    assert clone.trapped == ""
    assert [(beside / name).read_text() for name in "st"] == [f"{beside}\n", f"{beside}\n"]
    assert {each.name for each in beside.iterdir()} >= {"kept.db", "tapes"}
    assert not {each.name for each in clone.folder.iterdir()} & {"kept.db", "tapes", "s", "t"}


def said_first(clone: Clone) -> str:
    """The line about the configuration that `toolwire serve` writes on a terminal."""
    command = [*PROGRAMS["toolwire"], "serve", "--port", "0"]
    with Terminal(command, clone.environment, cwd=clone.folder, columns=200) as terminal:
        terminal.until("ready on ")
        terminal.press_ctrl_c()
        terminal.end()
        return terminal.lines[1]


def test_serve_says_on_a_terminal_which_file_it_reads(clone: Clone) -> None:
    clone.config.write_text('[store]\nurl = "memory:"\n')
    here = clone.folder / "toolwire.toml"
    here.write_text('[store]\nurl = "memory:"\n')
    assert said_first(clone) == f"configuration  {here}"
    here.unlink()
    assert said_first(clone) == f"configuration  {clone.config}"
    clone.config.unlink()
    assert said_first(clone) == f"configuration  none; toolwire init writes {clone.config}"


# A file of the working directory that others could have written


def world_writable_file(here: Path) -> None:
    here.chmod(0o666)


def world_writable_directory(here: Path) -> None:
    here.parent.chmod(0o777)


def replaceable_directory(here: Path) -> None:
    here.parent.parent.chmod(0o777)


def strangers_file(here: Path) -> None:
    os.chown(here, 12345, 12345)


def strangers_file_in_a_sticky_directory(here: Path) -> None:
    here.parent.chmod(0o1777)
    os.chown(here, 12345, 12345)


def strangers_directory(here: Path) -> None:
    os.chown(here.parent, 12345, 12345)


def strangers_group(here: Path) -> None:
    os.chown(here, 0, 12345)
    here.chmod(0o664)


def link_to_a_strangers_file(here: Path) -> None:
    target = here.parent.parent / "target"
    target.mkdir()
    os.chown(here.rename(target / "x.toml"), 12345, 12345) if os.getuid() == 0 else (target / "x.toml").chmod(0o666)
    here.symlink_to(target / "x.toml")


FOREIGN: list[Callable[[Path], None]] = [
    world_writable_file,
    world_writable_directory,
    replaceable_directory,
    strangers_file,
    strangers_file_in_a_sticky_directory,
    strangers_directory,
    strangers_group,
    link_to_a_strangers_file,
]
BY_ROOT = (
    strangers_file,
    strangers_file_in_a_sticky_directory,
    strangers_directory,
    strangers_group,
    link_to_a_strangers_file,
)


@pytest.fixture
def here(clone: Clone) -> Iterator[Path]:
    path = clone.folder / "toolwire.toml"
    path.write_text('[store]\nurl = "memory:"\n')
    yield path
    clone.folder.parent.chmod(0o700)


@pytest.mark.parametrize(
    "make", [pytest.param(each, marks=[needs_root] if each in BY_ROOT else [], id=each.__name__) for each in FOREIGN]
)
def test_a_file_that_others_could_have_written_is_refused(
    clone: Clone, here: Path, make: Callable[[Path], None]
) -> None:
    assert why_untrusted(here) == ""
    make(here)
    done = clone.run(*PROGRAMS["toolwire"], "serve", "--port", "0")
    assert done.returncode == 2, done
    assert re.fullmatch(
        r"toolwire: \./toolwire\.toml is not read: (\S+ belongs to .*, who is neither you nor root|others may write \S+)"
        r"; if you trust it, name it with --config\n",
        done.stderr,
    )


def test_a_directory_where_only_owners_may_replace_files_will_do(here: Path) -> None:
    here.parent.chmod(0o1777)
    assert why_untrusted(here) == ""


def test_a_group_of_its_owner_alone_may_write(here: Path) -> None:
    """That is how files are made where the umask is 002."""
    here.chmod(0o664)
    here.parent.chmod(0o775)
    assert why_untrusted(here) == ""
