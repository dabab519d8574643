"""`toolwire run` as people use it: the real program, in a real terminal where it matters."""

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.agent.terminal import PATIENCE, PROGRAM, Terminal, environment
from tests.agent.test_process import die_soon
from tests.support import backend_writers, processes
from tests.support.gateway import PROXIES, backend
from tests.support.routes import asked_path
from tests.support.scripts import NAMES, Calls, Item, Name, Says, Script
from tests.support.upstream import Hold, Pause, Reply, Upstream
from toolwire.agent.terminal.view import SPINNER
from toolwire.cli import app

MCP_SERVER = Path(__file__).with_name("mcp_server.py")
SESSION = re.compile(r'.*toolwire run --resume (\d{8}-\d{6}-[0-9a-f]{6})( --backend \S+)? "Go on\."')
ASK = "allow? [y]es / [a]lways for Bash / [N]o, or why not:"
ALWAYS = "always allow {}: [p] until the program ends"
"""Not for the folder, because the state of the program is in it."""
CLAUDE = "Read Write Edit Glob Grep Bash view_image"
CODEX = "exec_command write_stdin kill_session apply_patch update_plan view_image"
USED = re.compile(r"[\d,]+ tokens in \([\d,]+ cached\), [\d,]+ out")


def bash(command: str, *more: str) -> tuple[str, ...]:
    """What makes the demo model call Bash."""
    return (f"Run the bash command `{command}`", "--tools", "bash", *more)


class Desk:
    """A folder to work in, and the program started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = environment(folder)

    @property
    def sessions(self) -> list[Path]:
        return sorted((self.folder / "state/toolwire/sessions").glob("*.jsonl"))

    def terminal(self, *args: str, columns: int = 80, stdout: int | None = None, **more: str) -> Terminal:
        argv = (*PROGRAM, "run", *args)
        return Terminal(argv, {**self.environment, **more}, columns=columns, cwd=self.folder, stdout=stdout)

    @property
    def kept(self) -> list[dict[str, Any]]:
        """The items of the only session."""
        (path,) = self.sessions
        return [item for line in path.read_text().splitlines() for item in json.loads(line).get("items", [])]

    def start(self, *args: str, stdout: int = subprocess.PIPE, **more: str) -> "subprocess.Popen[bytes]":
        """Without a terminal."""
        return processes.Popen(
            (*PROGRAM, "run", *args),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env={**self.environment, **more},
        )

    def shell(self, line: str, **more: str) -> "subprocess.CompletedProcess[bytes]":
        """A line of shell in which `toolwire` is our program; its exit code is that of the first failure."""
        program = f'toolwire() {{ {shlex.join(PROGRAM)} "$@"; }}; set -o pipefail; {line}'
        return processes.run(
            ["bash", "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=self.folder,
            env={**self.environment, **more},
            check=False,
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def session(self) -> str:
        found = SESSION.search(self.err)
        assert found is not None, self.err
        return found[1]

    def of(self, type: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == type]


Run = Callable[..., Ran]


@pytest.fixture
def run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process, which is faster, without a terminal."""
    monkeypatch.chdir(desk.folder)
    monkeypatch.setattr(sys, "argv", ["toolwire"])
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "FORCE_COLOR", "COLUMNS", *PROXIES):
        monkeypatch.delenv(name, raising=False)

    def invoke(*args: str, stdin: bytes = b"") -> Ran:
        result = CliRunner().invoke(app, ["run", *args], env=desk.environment, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, _timeless(result.stdout), _timeless(result.stderr))

    return invoke


def _timeless(text: str) -> str:
    """The machine may be slow."""
    return re.sub(r"\b\d+\.\d s\b", "0.0 s", text)


def unwrapped(rows: list[str], columns: int = 80) -> str:
    """The rows of a line that the terminal has wrapped."""
    return "".join(row.ljust(columns) for row in rows).rstrip()


# A run in a terminal


@pytest.mark.parametrize("columns", [80, 40])
def test_a_run_from_its_first_row_to_its_last(desk: Desk, columns: int) -> None:
    command = "echo one [bold] ü; sleep 0.6; echo two; sleep 0.5"
    with desk.terminal(*bash(command, "--approve", "never"), columns=columns) as terminal:
        assert terminal.end() == 0
    (index,) = [index for index, line in enumerate(terminal.lines) if USED.fullmatch(line)]
    lines, session = terminal.lines[:index], unwrapped(terminal.lines[index + 1 :], columns)
    shown = command if columns == 80 else "echo one [bold] ü; s…"
    assert re.fullmatch(rf"✓ Bash {re.escape(shown)} \d\.\d s · two", lines[0])
    assert re.fullmatch(r"According to Bash: Wall time: \d\.\d seconds", " ".join(lines[1:-3]))
    assert lines[-3:] == ["Output:", "one [bold] ü", "two"]
    assert SESSION.fullmatch(session)
    running = [frame for frame in terminal.frames if frame and frame[-1][0] in SPINNER]
    assert {len(frame) for frame in running} == {1}
    rows = [re.fullmatch(r". Bash echo one .* (\d\.\d) s(?: · (one \[bol.*|two))?", frame[0]) for frame in running]
    assert all(rows), [frame[0] for frame in running]
    times = [float(row[1]) for row in rows if row]
    assert times == sorted(times)
    assert len(set(times)) > 3
    assert next(row[2] for row in rows if row and row[2]).startswith("one")
    assert len({frame[0][0] for frame in running}) > 3
    assert terminal.is_as_before


def test_text_is_shown_while_it_comes(desk: Desk, upstream: Upstream) -> None:
    text = "日本語 and [red]no[/red] colours.\nA second line, which is longer than the terminal is wide, and ends."
    reply = backend_writers.reply(Script((Says(text),), chars=6), "responses", stream=True)
    upstream.replies["run-streams"] = Reply([each for step in reply.steps for each in (step, Pause(0.02))])
    with desk.terminal(
        "Talk.", "--backend", f"responses:{upstream.url}", "--model", "run-streams", columns=40
    ) as terminal:
        assert terminal.end() == 0
    lines = [
        "日本語 and [red]no[/red] colours.",
        "A second line, which is longer than the",
        "terminal is wide, and ends.",
    ]
    assert terminal.lines[:3] == lines
    assert terminal.screen.colours <= {"36"}, "that of the spinner"
    grown = [" ".join(frame) for frame in terminal.frames if frame and frame[0][0] not in SPINNER]
    assert len(grown) > 3
    assert all(" ".join(lines).startswith(each) for each in grown[:3])


def test_without_colours_the_rest_is_the_same(desk: Desk) -> None:
    with desk.terminal(*bash("false", "--approve", "never"), NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    assert terminal.screen.colours == set()
    assert _timeless(terminal.lines[0]) == "✗ Bash false 0.0 s · Exit code: 1"


def test_what_is_typed_meanwhile_leaves_no_trace(desk: Desk) -> None:
    with desk.terminal(*bash("sleep 1", "--approve", "never")) as terminal:
        terminal.until("Bash sleep 1 0.")
        terminal.type("\n\nhello\n")
        assert terminal.end() == 0
    assert [line[:14] for line in terminal.lines[:3]] == ["✓ Bash sleep 1", "According to B", "Output:"]
    assert USED.fullmatch(terminal.lines[3])
    assert SESSION.fullmatch(unwrapped(terminal.lines[4:]))
    assert terminal.is_as_before


def test_a_terminal_that_cannot_show_a_letter_shows_another(desk: Desk) -> None:
    with desk.terminal(*bash("echo ü", "--approve", "never"), PYTHONIOENCODING="ascii") as terminal:
        assert terminal.end() == 0
    assert _timeless(terminal.lines[0]) == "? Bash echo ? 0.0 s ? ?"


# Questions


ASKED = ["Bash wants to run:", "  command: echo ran > mark"]


@pytest.mark.parametrize(
    ("keys", "line", "runs"),
    [
        ("y\n", f"{ASK} y", True),
        ("n\n", f"{ASK} n", False),
        ("\n", ASK, False),
        ("\x04", ASK, False),
    ],
    ids=["y", "n", "Enter", "Ctrl-D"],
)
def test_a_question_and_its_answer(desk: Desk, keys: str, line: str, runs: bool) -> None:
    with desk.terminal(*bash("echo ran > mark")) as terminal:
        terminal.until(ASK)
        assert terminal.lines == [*ASKED, ASK]
        assert terminal.screen.has_cursor
        before = terminal.output
        time.sleep(0.25)
        terminal.look()
        assert terminal.output == before, "nothing moves meanwhile"
        terminal.type(keys)
        assert terminal.end() == 0
    assert terminal.lines[:3] == [*ASKED, line]
    assert re.fullmatch(
        r"✓ Bash echo ran > mark \d\.\d s" if runs else "✗ Bash echo ran > mark · refused", terminal.lines[3]
    )
    assert any("The user did not allow this call." in item.get("output", "") for item in desk.kept) is not runs
    assert (desk.folder / "mark").exists() is runs
    assert terminal.is_as_before


def test_one_question_at_a_time(desk: Desk) -> None:
    """Both calls may run side by side, and so may the questions come."""
    ask = ASK.replace("Bash", "exec_command")
    os.mkfifo(desk.folder / "gate")
    prompt = "Run commands: `touch mark; cat gate` `echo second`"
    with desk.terminal(prompt, "--tools", "exec") as terminal:
        terminal.until(ask)
        assert terminal.lines == [
            "exec_command wants to run:",
            "  cmd: touch mark; cat gate",
            ALWAYS.format("`touch`, `cat`"),
            ask,
        ]
        terminal.type("yes\n")
        terminal.until(f"{ALWAYS.format('`echo`')}\n{ask}")
        assert terminal.lines[3:] == [
            f"{ask} yes",
            "exec_command wants to run:",
            "  cmd: echo second",
            ALWAYS.format("`echo`"),
            ask,
        ]
        terminal.until((desk.folder / "mark").exists)  # the first one runs meanwhile
        terminal.look()
        assert len(terminal.lines) == 8
        terminal.type("n\n")
        (desk.folder / "gate").write_text("open")
        assert terminal.end() == 0
    assert terminal.lines[7] == f"{ask} n"
    assert sorted(line[:24] for line in terminal.lines if line[0] in "✓✗") == [
        "✓ exec_command touch mar",
        "✗ exec_command echo seco",
    ]


@pytest.mark.parametrize("redirected", [False, True], ids=["terminal", "file"])
def test_what_was_typed_before_a_question_is_no_answer(desk: Desk, redirected: bool) -> None:
    with (desk.folder / "out").open("wb") as file:
        with desk.terminal(*bash("echo ran > mark"), stdout=file.fileno() if redirected else None) as terminal:
            terminal.type("y\n")
            terminal.until(ASK)
            terminal.type("n\n")
            assert terminal.end() == 0
    assert not (desk.folder / "mark").exists()


@pytest.mark.parametrize(
    ("keys", "runs"), [(("s\n", "y\n"), True), (("y\n",), False), (("s\n", "\n"), False)], ids=["all", "part", "no"]
)
def test_nobody_is_asked_about_what_was_not_shown(desk: Desk, keys: tuple[str, ...], runs: bool) -> None:
    lines = "\n".join(f": {number}" for number in range(1000))
    first, last = "echo first", "echo ran > mark"
    with desk.terminal(*bash(f"{first}\n{lines}\n{last}")) as terminal:
        terminal.until("show the rest? [s/N]")
        assert any(first in line for line in terminal.lines)
        assert not any(last in line or "allow?" in line for line in terminal.lines)
        terminal.type(keys[0])
        if len(keys) > 1:
            terminal.until(ASK)
            assert terminal.lines[-3:-1] == [
                f"    {last}",
                "The call has 1,003 rows, more than fit on the screen: scroll up to see them.",
            ]
            assert sum(line.strip().startswith(": ") for line in terminal.lines) == 1000
            terminal.type(keys[1])
        assert terminal.end() == 0
    assert (desk.folder / "mark").exists() is runs


def test_a_question_is_asked_where_it_is_seen(desk: Desk) -> None:
    with (desk.folder / "out").open("wb") as file, desk.terminal(*bash("echo hi"), stdout=file.fileno()) as terminal:
        terminal.until(ASK)
        terminal.type("y\n")
        assert terminal.end() == 0
    assert terminal.lines[:4] == ["Bash wants to run:", "  command: echo hi", ALWAYS.format("`echo`"), f"{ASK} y"]
    assert terminal.lines[4].startswith("✓ Bash echo hi ")
    assert (desk.folder / "out").read_text().startswith("According to Bash: ")


def test_where_nobody_can_be_asked_the_call_is_refused(run: Run) -> None:
    ran = run(*bash("echo ran > mark"))
    assert ran.code == 0
    assert "✗ Bash echo ran > mark · refused: no user is present to allow it\n" in ran.err
    assert "Bash failed: This call needs the user's approval, and no user is present" in ran.out
    assert not Path("mark").exists()


def test_every_call_is_asked_about_if_that_is_wanted(run: Run) -> None:
    Path("a.txt").write_text("hello")
    assert "✓ Read a.txt" in run("Read a.txt", "--tools", "read").err
    assert "✗ Read a.txt · refused: no user" in run("Read a.txt", "--tools", "read", "--approve", "always").err


# Ctrl-C

FAMILY = "echo $$ > pids; sleep 300 & echo $! >> pids; wait"
STUBBORN = f"trap '' TERM; {FAMILY}; while :; do sleep 1; done"


def pids_in(desk: Desk, count: int = 2) -> list[int]:
    """The processes that a command has written down."""
    deadline = time.monotonic() + PATIENCE
    path = desk.folder / "pids"
    while not path.exists() or len(path.read_text().split()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [int(pid) for pid in path.read_text().split()]


def test_ctrl_c_stops_the_tool_and_all_it_started_and_the_session_goes_on(desk: Desk, run: Run) -> None:
    with desk.terminal(*bash(FAMILY, "--approve", "never")) as terminal:
        terminal.until(" s")
        pids = pids_in(desk)
        terminal.press_ctrl_c()
        assert terminal.end() == 130
    assert die_soon(pids)
    index = terminal.lines.index("stopped: cancelled")
    call, used, session = terminal.lines[:index], terminal.lines[index + 1], unwrapped(terminal.lines[index + 2 :])
    shown = r"✗ Bash echo \$\$ > pids; sleep 300 .*… \d+\.\d s · Wall time: \d+\.\d seconds aborted by user"
    assert re.fullmatch(shown, " ".join(call))
    assert USED.fullmatch(used)
    assert terminal.is_as_before
    found = SESSION.fullmatch(session)
    assert found is not None
    again = run("And now?", "--resume", found[1], "--tools", "none")
    assert again.code == 0
    assert again.out.startswith("This is the demo model. You said: And now?\n")
    assert [item["type"] for item in desk.kept if item["type"] != "reasoning"] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ]


def test_ctrl_c_twice_leaves_at_once_and_leaves_nothing(desk: Desk) -> None:
    with desk.terminal(*bash(STUBBORN, "--approve", "never")) as terminal:
        terminal.until(" s")
        pids = pids_in(desk)
        terminal.press_ctrl_c()
        terminal.until(" s · cancelling")
        terminal.press_ctrl_c()
        assert terminal.end() == 130
    assert die_soon(pids)
    assert SESSION.search(unwrapped(terminal.lines))
    assert not any(line[0] in SPINNER for line in terminal.lines)
    assert terminal.is_as_before
    assert len(desk.sessions) == 1


def test_ctrl_c_at_a_question(desk: Desk) -> None:
    with desk.terminal(*bash("echo ran > mark")) as terminal:
        terminal.until(ASK)
        terminal.press_ctrl_c()
        assert terminal.end() == 130
    assert terminal.lines[2] == f"{ASK} ^C"
    assert terminal.lines[3].startswith("✗ Bash echo ran > mark ")
    assert terminal.lines[4] == "stopped: cancelled"
    assert not (desk.folder / "mark").exists()
    assert terminal.is_as_before


def test_ctrl_c_while_the_model_is_silent(desk: Desk) -> None:
    with desk.terminal("Hello?", "--model", "demo-silent") as terminal:
        terminal.until("waiting for demo-silent")
        terminal.press_ctrl_c()
        assert terminal.end() == 130
    assert terminal.lines[0] == "stopped: cancelled"


def test_ctrl_c_between_two_attempts(desk: Desk) -> None:
    with desk.terminal("Hello?", "--backend", "chat:http://127.0.0.1:9", "--model", "m") as terminal:
        terminal.until("retry 2 of 5")
        terminal.press_ctrl_c()
        assert terminal.end() == 130
    assert "stopped: cancelled" in terminal.lines


NULL_LIKE = "import os, signal, time; signal.signal(15, 1); open('pids', 'w').write(str(os.getpid())); time.sleep(300)"


def test_ctrl_c_while_mcp_servers_start(desk: Desk) -> None:
    """One that does not answer, and does not want to end. The second one does not wait for it."""
    servers = {"mcpServers": {"silent": {"command": sys.executable, "args": ["-c", NULL_LIKE]}}}
    (desk.folder / "mcp.json").write_text(json.dumps(servers))

    def leave(presses: int, grace: float) -> None:
        patch = desk.folder / f"patch{presses}"
        patch.mkdir()
        lines = [f"mcp.client.stdio.{name} = {grace}" for name in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT")]
        (patch / "sitecustomize.py").write_text("\n".join(("import mcp.client.stdio", *lines)))
        with desk.terminal("Hello?", "--mcp", "mcp.json", PYTHONPATH=str(patch)) as terminal:
            terminal.until("waiting for MCP servers")
            pids = pids_in(desk, 1)
            terminal.press_ctrl_c()
            terminal.until(" cancelling ")
            assert terminal.process.poll() is None
            if presses == 2:
                terminal.press_ctrl_c()
            assert terminal.end() == 130
        assert die_soon(pids)
        (desk.folder / "pids").unlink()
        assert terminal.lines == ["toolwire: cancelled"]
        assert terminal.is_as_before

    leave(presses=1, grace=0.5)
    leave(presses=2, grace=600)
    assert desk.sessions == [], "nothing has begun"


def test_a_window_that_is_closed_stops_the_tools(desk: Desk) -> None:
    with desk.terminal(*bash(FAMILY, "--approve", "never")) as terminal:
        pids = pids_in(desk)
        terminal.hang_up()
        terminal.end()
    assert die_soon(pids)


@pytest.mark.parametrize("redirected", [False, True], ids=["terminal", "file"])
def test_a_window_that_is_closed_at_a_question_stops_the_task(desk: Desk, redirected: bool) -> None:
    with (desk.folder / "out").open("wb") as file:
        with desk.terminal(*bash("echo ran > mark"), stdout=file.fileno() if redirected else None) as terminal:
            terminal.until(ASK)
            terminal.hang_up()
            terminal.end()
    assert not (desk.folder / "mark").exists()
    (result,) = [item["output"] for item in desk.kept if item["type"] == "function_call_output"]
    assert result == "aborted by user before it started"
    assert desk.kept[-1]["type"] == "function_call_output", "nobody is asked any more"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_a_run_without_a_terminal(desk: Desk, number: signal.Signals) -> None:
    with desk.start(*bash(FAMILY, "--approve", "never", "--json")) as process:
        pids = pids_in(desk)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    ran = Ran(process.returncode, out.decode(), err.decode())
    assert (ran.code, ran.err) == (130, "")
    assert ran.events[-1]["type"] == "task_ended"
    assert ran.events[-1]["reason"] == "cancelled"
    assert [event["failed"] for event in ran.of("call_ended")] == [True]
    assert die_soon(pids)


# Lines of JSON, files and pipes


def test_everything_that_happens_as_lines_of_json(run: Run) -> None:
    ran = run(*bash("echo hi [b] ü", "--approve", "never", "--json"))
    assert (ran.code, ran.err) == (0, "")
    types = [event["type"] for event in ran.events]
    assert types[0] == "task_started"
    assert types[-1] == "task_ended"
    expected = ["turn_started", "call_started", "tool_started", "tool_output", "call_ended", "turn_ended"]
    assert [type for type in types if type in expected] == [*expected, "turn_started", "turn_ended"]
    assert ran.of("tool_output")[0]["text"] == "hi [b] ü\n"
    assert ran.events[-1]["reason"] == "done"
    assert ran.events[-1]["text"].startswith("According to Bash: ")


def test_a_session_that_json_names_can_be_resumed(run: Run) -> None:
    first = run("Hello", "--tools", "none", "--json")
    again = run("Again", "--tools", "none", "--json", "--resume", first.events[0]["session"])
    assert again.events[0]["session"] == first.events[0]["session"]
    assert again.events[-1]["reason"] == "done"


@pytest.mark.parametrize("as_json", ["--json", ""], ids=["json", "text"])
def test_a_reader_that_goes_away_is_no_reason_to_complain(desk: Desk, as_json: str) -> None:
    command = f"toolwire run 'Run the bash command `echo hi; sleep 0.3`' --tools bash --approve never {as_json}"
    ran = desk.shell(f"{command} | true")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"Traceback" not in ran.stderr
    assert b"Broken" not in ran.stderr


def test_output_that_cannot_be_written_is_said_in_one_line(desk: Desk) -> None:
    ran = desk.shell("toolwire run hi --tools none --json > /dev/full; echo $?; toolwire run hi >&-; echo $? >&2")
    assert ran.stdout == b"1\n"
    assert ran.stderr == b"toolwire: No space left on device\ntoolwire: stdout is closed\n2\n"


def test_a_file_gets_the_answer_without_what_steers_a_terminal(run: Run) -> None:
    text = f"{'a long line ' * 20}[bold]\n\tx"
    ran = run(f"{text}\x1b[31my\u202e\u2066\x9b", "--tools", "none")
    assert ran.out.startswith(f"This is the demo model. You said: {text}y\n")
    assert SESSION.fullmatch(ran.err.splitlines()[-1])


def test_lines_of_json_say_the_same_and_steer_no_terminal(run: Run) -> None:
    ran = run("x\x1b[31my\u202ez\x9b\U000e0041", "--tools", "none", "--json")
    said = "This is the demo model. You said: x\x1b[31my\u202ez\x9b\U000e0041\n"
    assert ran.of("task_ended")[0]["text"].startswith(said)
    assert ran.out.isascii()


def test_colours_in_a_pipe_are_no_reason_to_move_about(desk: Desk) -> None:
    ran = desk.shell("toolwire run 'Run the bash command `echo hi`' --tools bash --approve never", FORCE_COLOR="1")
    assert ran.returncode == 0
    assert ran.stdout.startswith(b"According to Bash: ")
    assert _timeless(re.sub(r"\x1b\[\d+m", "", ran.stderr.decode())).startswith("✓ Bash echo hi 0.0 s · hi\n")
    assert b"\x1b[32m" in ran.stderr


# What cannot be


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            "--tools read,nope",
            "--tools: there is no tool 'nope'; there are read, write, edit, glob, grep, bash, patch,",
        ),
        ("--approve sometimes", "--approve: 'sometimes' is not one of never, on-write, always"),
        ("--resume 20200101-000000-abcdef", "there is no session '20200101-000000-abcdef' in "),
        ("--resume ../x", "'../x' is not the id of a session"),
        ("--model nope", "There is no model 'nope' here."),
        ("--tools ,", "--tools: ',' names no tool; none selects no tools"),
        ("--tools ''", "--tools: '' names no tool"),
        ("--tools none,read", "--tools: none cannot be combined with other names"),
        ("--cwd nowhere", "--cwd: there is no directory 'nowhere'"),
        ("--cwd file", "--cwd: there is no directory 'file'"),
        ("--mcp nowhere.json", "--mcp: nowhere.json: No such file or directory"),
        ("--mcp file", "--mcp: file: the configuration of MCP servers is not JSON: "),
        ("--mcp empty.json", "--mcp: empty.json: mcpServers: is missing"),
        ("--backend nope --model m", "--backend: there is no backend 'nope'; there are demo"),
        ("--backend soap:http://127.0.0.1 --model m", "--backend: 'soap' is not one of chat, responses, messages"),
        ("--backend chat:ftp://127.0.0.1 --model m", "--backend: 'ftp://127.0.0.1' is not an address: no http://HOST"),
        ("--backend chat:http:// --model m", "--backend: 'http://' is not an address: no http://HOST[:PORT]"),
        (
            "--backend chat:http://127.0.0.1:99999 --model m",
            "--backend: 'http://127.0.0.1:99999' is not an address: Port",
        ),
        ("--backend chat:http://127.0.0.1:x --model m", "--backend: 'http://127.0.0.1:x' is not an address: Port"),
        ("--backend chat:http://[::1 --model m", "--backend: 'http://[::1' is not an address: Invalid IPv6 URL"),
        ("--backend 'chat:http://a b' --model m", "--backend: 'http://a b' is not an address: it has a space"),
        ("--backend chat:http://127.0.0.1", "--backend: name one of its models with --model"),
        ("--max-turns -1", "--max-turns: -1 is less than 0"),
        ("--context-window -1", "--context-window: -1 is less than 0"),
        ("--config nowhere.toml", "nowhere.toml: there is no such file"),
        ("--config file", "file: Expected '=' after a key"),
    ],
)
def test_an_option_that_cannot_be_is_said_in_one_line(run: Run, desk: Desk, options: str, line: str) -> None:
    Path("file").write_text("what")
    Path("empty.json").write_text("{}")
    ran = run("Hello", *shlex.split(options))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"toolwire: {line}")
    assert ran.err.count("\n") == 1
    assert desk.sessions == []


@pytest.mark.parametrize(
    ("prompt", "line"),
    [("", "the prompt is empty"), (" \n", "the prompt is empty"), ("a\udcffb", "the prompt is not UTF-8")],
)
def test_a_prompt_that_cannot_be(run: Run, prompt: str, line: str) -> None:
    ran = run(prompt)
    assert (ran.code, ran.out, ran.err) == (2, "", f"toolwire: {line}\n")


def test_a_prompt_from_standard_input(run: Run) -> None:
    ran = run("-", "--tools", "none", stdin="Grüße,\nund mehr\n".encode())
    assert ran.code == 0
    assert ran.out.startswith("This is the demo model. You said: Grüße,\nund mehr\n")


@pytest.mark.parametrize(
    ("redirection", "line"),
    [
        ("</dev/null", "the prompt is empty"),
        ("<<<$'\\xff'", "the prompt is not UTF-8"),
        ("<&-", "stdin is closed"),
    ],
)
def test_a_standard_input_that_is_no_prompt(desk: Desk, redirection: str, line: str) -> None:
    ran = desk.shell(f"toolwire run - {redirection}")
    assert (ran.returncode, ran.stdout, ran.stderr.decode()) == (2, b"", f"toolwire: {line}\n")


def test_ctrl_c_while_the_prompt_is_typed(desk: Desk) -> None:
    with desk.terminal("-") as terminal:
        terminal.type("Hello,\n")
        terminal.until(lambda: b"Hello,\r\n" in terminal.output and not terminal.unread)  # it is reading now
        terminal.type("wor")
        terminal.until("wor")
        terminal.press_ctrl_c()
        assert terminal.end() == 130
    assert terminal.lines == ["Hello,", "wor^C", "toolwire: cancelled"]
    assert desk.sessions == []


def test_a_directory_that_is_gone(desk: Desk) -> None:
    (desk.folder / "here").mkdir()
    ran = desk.shell("cd here; rmdir ../here; toolwire run Hello; echo $?; toolwire run Hello --tools none --cwd ..")
    assert ran.stdout == b"2\n"
    assert (
        ran.stderr.splitlines() == [b"toolwire: the current directory no longer exists; choose another with --cwd"] * 2
    )
    ran = desk.shell(f"mkdir here; cd here; rmdir ../here; toolwire run Hello --tools none --cwd {desk.folder} -q")
    assert (ran.returncode, ran.stderr) == (0, b"")


# Going on


def test_the_last_line_can_be_pasted(desk: Desk) -> None:
    with desk.terminal("Hello", "--tools", "none", columns=200) as terminal:
        assert terminal.end() == 0
    assert terminal.lines[-1].startswith(f"{shlex.join(PROGRAM)} run --resume ")
    again = desk.shell(terminal.lines[-1])
    assert again.returncode == 0
    assert [item["content"][0]["text"] for item in desk.kept if item.get("role") == "user"] == ["Hello", "Go on."]


@pytest.mark.parametrize(
    ("called", "shown"),
    [
        ("toolwire", "toolwire"),
        (".venv/bin/toolwire", ".venv/bin/toolwire"),
        ("{bin}/toolwire", "toolwire"),
        ("/else where/toolwire", "'/else where/toolwire'"),
    ],
)
def test_the_last_line_calls_the_program_as_it_was_called(
    run: Run, desk: Desk, monkeypatch: pytest.MonkeyPatch, called: str, shown: str
) -> None:
    found = desk.folder / "toolwire"
    found.touch(mode=0o755)
    desk.environment["PATH"] = str(desk.folder)
    monkeypatch.setattr(sys, "argv", [called.format(bin=desk.folder)])
    ran = run("Hello", "--tools", "none")
    assert ran.err.splitlines()[-1] == f'{shown} run --resume {desk.sessions[0].stem} "Go on."'


def test_the_last_line_has_what_the_session_does_not_know(run: Run, desk: Desk) -> None:
    Path("a b.toml").touch()
    Path("there").mkdir()
    ran = run("Hello", "--tools", "none", "--config", "a b.toml", "--cwd", "there", "--model", "demo-slow")
    id = desk.sessions[0].stem
    assert ran.err.splitlines()[-1] == f"toolwire run --resume {id} --config 'a b.toml' \"Go on.\""
    ran = run("Hello", "--tools", "none", "--cwd", ".", "--model", "demo", "--backend", "demo", "--resume", id)
    assert ran.err.splitlines()[-1] == (f'toolwire run --resume {id} --backend demo --model demo --cwd . "Go on."')


def test_a_session_goes_on_in_its_own_directory(run: Run, desk: Desk) -> None:
    for name in ("one", "two"):
        Path(name).mkdir()
        Path(name, "a.txt").write_text(f"this is {name}")
    read = ("Read a.txt", "--tools", "read")
    first = run(*read, "--cwd", "one")
    assert "this is one" in run(*read, "--resume", first.session).out
    assert "this is two" in run(*read, "--resume", first.session, "--cwd", "two").out
    assert "this is one" in run(*read, "--resume", first.session).out
    Path("one").rename("three")
    gone = run(*read, "--resume", first.session)
    assert (gone.code, gone.out) == (2, "")
    where = desk.folder / "one"
    assert (
        gone.err
        == f"toolwire: --resume: the directory of the session no longer exists: {where}; choose another with --cwd\n"
    )
    assert "this is one" in run(*read, "--resume", first.session, "--cwd", "three").out


def test_the_tokens_after_a_resume_are_those_of_the_session(run: Run) -> None:
    first = run("Hello", "--tools", "none")
    used = first.err.splitlines()[-2]
    assert USED.fullmatch(used)
    *_, sums, _ = run("Again", "--tools", "none", "--resume", first.session).err.splitlines()
    assert re.fullmatch(rf"{USED.pattern} in the whole session", sums)
    assert int(sums.split()[0].replace(",", "")) > int(used.split()[0].replace(",", ""))


def test_a_session_that_cannot_be_kept(run: Run, desk: Desk) -> None:
    (desk.folder / "state").write_text("in the way")
    ran = run("Hello")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("toolwire: the session cannot be stored in ")


# Backends


def script(kind: Name, *items: Item) -> Reply:
    return backend_writers.reply(Script(items), kind, stream=True)


@pytest.mark.parametrize("kind", NAMES)
def test_a_server_of_any_kind_and_the_session_goes_on(run: Run, upstream: Upstream, kind: Name) -> None:
    model = f"run-{kind}"
    call = Calls("call_1", "Read", '{"path":"a.txt"}')
    upstream.replies[model] = [
        script(kind, Says("I look."), call),
        script(kind, Says("It says [hi].")),
        script(kind, Says("Bye.")),
    ]
    Path("a.txt").write_text("hi")
    server = ("--backend", f"{kind}:{upstream.url}")
    ran = run("What does it say?", *server, "--model", model, "--tools", "read")
    assert (ran.code, ran.out) == (0, "It says [hi].\n")
    assert ran.err.splitlines() == [
        "I look.",
        "✓ Read a.txt 0.0 s · 1 hi",
        "20 tokens in (0 cached), 12 out",
        f'toolwire run --resume {ran.session} --backend {kind}:{upstream.url} "Go on."',
    ]
    assert upstream.of(model)[0].path == asked_path(kind, model, stream=True)

    again = run("Thank you.", *server, "--resume", ran.session)
    assert again.code == 0
    assert again.out.startswith("Bye.\n")
    asked = json.dumps(upstream.of(model)[-1].body)
    assert [each in asked for each in ("What does it say?", "I look.", "call_1", "It says [hi].", "Thank you.")] == [
        True
    ] * 5


def declared(upstream: Upstream, model: str) -> list[str]:
    """The tools in the last request for a model."""
    return [tool.get("name", tool["type"]) for tool in upstream.of(model)[-1].body["tools"]]


@pytest.mark.parametrize(
    ("model", "options", "tools"),
    [
        ("gpt-run", "--approve never", CODEX),
        ("openai/o3-run", "--approve never", CODEX),
        ("claude-run", "", CLAUDE),
        ("qwen-run", "", CLAUDE),
        ("gpt-run-asks", "", f"{CODEX} Read Glob Grep"),
        ("gpt-run-reads", "--approve never --read-only", f"{CODEX} Read Glob Grep"),
        ("gpt-run-other", "--tools claude", CLAUDE),
        ("claude-run-other", "--tools codex,glob", f"{CODEX} Glob"),
    ],
)
def test_a_model_gets_the_tools_of_its_family(
    run: Run, upstream: Upstream, model: str, options: str, tools: str
) -> None:
    upstream.replies[model] = script("responses", Says("Hi."))
    ran = run("Hi", "--backend", f"responses:{upstream.url}", "--model", model, *options.split())
    assert ran.code == 0
    assert declared(upstream, model) == tools.split()


def test_the_family_of_an_alias_is_that_of_its_model(run: Run, upstream: Upstream, desk: Desk) -> None:
    upstream.replies["gpt-run-alias"] = script("responses", Says("Hi."))
    own = desk.folder / ".config/toolwire/toolwire.toml"
    own.parent.mkdir(parents=True)
    own.write_text(backend(upstream.url, aliases='{ fast = "gpt-run-alias" }'))
    assert run("Hi", "--model", "fast", "--approve", "never").code == 0
    assert declared(upstream, "gpt-run-alias") == CODEX.split()


def test_the_plan_of_a_model_is_checked_and_counted(run: Run, upstream: Upstream) -> None:
    steps = [{"step": "Look", "status": "completed"}, {"step": "Write", "status": "in_progress"}]
    upstream.replies["gpt-run-plan"] = [
        script("responses", Calls("c1", "update_plan", json.dumps({"plan": steps}))),
        script("responses", Calls("c2", "update_plan", json.dumps({"plan": steps[1:] * 2}))),
        script("responses", Calls("c3", "update_plan", json.dumps({"plan": [{"step": "a", "status": "new"}]}))),
        script("responses", Says("Done.")),
    ]
    ran = run("Plan", "--backend", f"responses:{upstream.url}", "--model", "gpt-run-plan", "--json")
    results = [event["result"] for event in ran.of("call_ended")]
    assert results[:2] == ["Plan updated (1 of 2 done: Write)", "at most one step can be in_progress at a time"]
    assert "Invalid enum value 'new'" in results[2]


def test_a_backend_of_the_settings_is_remembered(run: Run, upstream: Upstream, desk: Desk) -> None:
    upstream.replies["run-named"] = [script("responses", Says("One.")), script("responses", Says("Two."))]
    own = desk.folder / ".config/toolwire/toolwire.toml"
    own.parent.mkdir(parents=True)
    own.write_text(backend(upstream.url))
    first = run("Count.", "--backend", "up", "--model", "run-named")
    assert first.out.startswith("One.\n")
    assert f'toolwire run --resume {first.session} "Go on."\n' in first.err
    assert run("On.", "--resume", first.session).out.startswith("Two.\n")
    assert run("On.", "--resume", first.session, "--backend", "up").out.startswith("Two.\n")
    assert run("On.", "--resume", first.session, "--model", "demo", "--tools", "none").out.startswith(
        "This is the demo"
    )


def test_a_server_that_was_given_has_to_be_given_again(run: Run, upstream: Upstream) -> None:
    upstream.replies["run-given"] = script("chat", Says("One."))
    first = run("Count.", "--backend", f"chat:{upstream.url}", "--model", "run-given")
    again = run("On.", "--resume", first.session)
    assert (again.code, again.err) == (
        2,
        "toolwire: --resume: the backend was given by its address; give it again with --backend\n",
    )


@pytest.mark.parametrize("kind", NAMES)
def test_a_server_that_refuses_is_quoted(run: Run, upstream: Upstream, kind: Name) -> None:
    body = backend_writers.refusal(kind, 400, "The [model] is :tired:.")
    upstream.replies["run-refuses"] = Reply([body], status=400, content_type="application/json")
    ran = run("Hello", "--backend", f"{kind}:{upstream.url}", "--model", "run-refuses")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[0] == "failed: The [model] is :tired:."
    assert SESSION.search(ran.err)


def test_a_model_that_repeats_a_failing_call_ends_the_run_with_1(run: Run, upstream: Upstream) -> None:
    upstream.replies["run-repeats"] = lambda _: script("responses", Calls("c1", "nope", "{}"))
    ran = run("Hello", "--backend", f"responses:{upstream.url}", "--model", "run-repeats")
    why = "nope was called with the same arguments again and again, and failed each time"
    assert (ran.code, ran.out) == (1, "")
    lines = ran.err.splitlines()
    assert lines[0] == "✗ nope · unsupported call: nope"
    assert f"stopped: repeated_calls: {why}" in lines
    ran = run("Hello", "--backend", f"responses:{upstream.url}", "--model", "run-repeats", "--json")
    assert (ran.code, ran.of("task_ended")[0]["reason"], ran.of("task_ended")[0]["error"]) == (1, "repeated_calls", why)
    assert len(ran.of("turn_started")) == 4
    assert [event["seconds"] for event in ran.of("call_ended")] == [None] * 4


def test_the_timeouts_of_the_settings_hold(
    run: Run, desk: Desk, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.backoff.FIRST_DELAY", 0.001)
    upstream.replies["run-slow"] = Reply([Hold()])
    settings = f'[timeouts]\nfirst_byte = 0.1\n[[backends]]\nname = "up"\nkind = "chat"\nbase_url = "{upstream.url}"\n'
    (desk.folder / "slow.toml").write_text(settings)
    ran = run("Hello", "--config", "slow.toml", "--model", "up/run-slow", "--json")
    assert ran.code == 1
    assert "timeouts.first_byte of 0.1 seconds" in ran.of("task_ended")[0]["error"]


def test_the_limits_of_an_account_stand_at_the_end(run: Run, upstream: Upstream) -> None:
    reply = script("responses", Says("Hi."))
    reply.headers = {"x-codex-primary-used-percent": "12", "x-codex-primary-window-minutes": "300"}
    upstream.replies["run-limits"] = reply
    ran = run("Hello", "--backend", f"responses:{upstream.url}", "--model", "run-limits")
    assert "10 tokens in (0 cached), 6 out · codex 5 h: 12%\n" in ran.err


# Tools


def test_read_only_changes_nothing(run: Run) -> None:
    ran = run("Write the file `a.txt`", "--tools", "write", "--read-only", "--approve", "never")
    assert ran.code == 0
    assert "✗ Write a.txt content=Write the file `a.txt` · refused: read-only\n" in ran.err
    assert "read-only mode: Write may change something, so it is refused." in ran.out
    assert not Path("a.txt").exists()


def test_the_working_directory(run: Run, desk: Desk) -> None:
    (desk.folder / "inside").mkdir()
    assert f"· {desk.folder / 'inside'}\n" in run(*bash("pwd", "--approve", "never", "--cwd", "inside")).err


@pytest.mark.parametrize("model", ["demo-parallel", "demo-use-tool"])
def test_a_demo_model_with_calls_comes_to_an_end(run: Run, model: str) -> None:
    ran = run("Read a.txt", "--tools", "read", "--model", model)
    assert ran.code == 0
    assert ran.out.startswith("Read failed: there is no a.txt")
    assert "stopped" not in ran.err


def test_the_row_of_a_session_shows_its_output(run: Run) -> None:
    ran = run("Run the command `echo hi; echo ho`", "--tools", "exec", "--approve", "never")
    assert ran.err.startswith("✓ exec_command echo hi; echo ho 0.0 s · ho\n")


def test_a_run_ends_at_its_limit(run: Run) -> None:
    ran = run(*bash("echo hi", "--approve", "never", "--max-turns", "1"))
    assert ran.code == 0
    assert ran.err.splitlines()[:2] == ["✓ Bash echo hi 0.0 s · hi", "stopped: max_turns"]


def test_tools_of_an_mcp_server(run: Run, desk: Desk) -> None:
    servers = {
        "real": {"command": sys.executable, "args": [str(MCP_SERVER)], "allow": ["echo"], "trusted": True},
        "missing": {"command": "/nowhere/at/all"},
    }
    Path("mcp.json").write_text(json.dumps({"mcpServers": servers}))
    ran = run("Say it again: `[hello]`", "--tools", "none", "--mcp", "mcp.json")
    assert ran.code == 0
    assert ran.out == "According to real__echo: [hello]\n"
    first, second, *_ = ran.err.splitlines()
    assert first.startswith("toolwire: MCP server missing: is not running: ")
    assert re.fullmatch(r"✓ real__echo \[hello\] \d\.\d s · \[hello\]", second)


# BatchWriter it


def test_sessions_are_kept_where_they_belong_for_their_owner_alone(run: Run, desk: Desk) -> None:
    ran = run("Hello", "--tools", "none")
    (path,) = desk.sessions
    assert path.stem == ran.session
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_without_xdg_they_are_kept_at_home(run: Run, desk: Desk) -> None:
    desk.environment["XDG_STATE_HOME"] = ""
    ran = run("Hello", "--tools", "none")
    assert (desk.folder / ".local/state/toolwire/sessions" / f"{ran.session}.jsonl").exists()


def imported(desk: Desk, *args: str) -> set[str]:
    """The packages that a run imports."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", *PROGRAM[1:], "run", *args],
        capture_output=True,
        cwd=desk.folder,
        env=desk.environment,
        text=True,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}


def test_a_run_imports_what_it_needs(desk: Desk) -> None:
    assert not imported(desk, "--help") & {"toolwire.agent", "aiohttp", "mcp"}
    modules = imported(desk, "Hello", "--tools", "none")
    assert "toolwire.agent" in modules
    assert not modules & {
        "mcp",
        "httpx2",
        "anyio",
        "starlette",
        "uvicorn",
        "jsonschema",
        "prompt_toolkit",
        "toolwire.gateway",
    }
