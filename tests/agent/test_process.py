"""Real processes: what they say, how they end, and that nothing of them stays."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import needs
from toolwire.agent.tools import supervisor
from toolwire.agent.tools.process import MAX_EMITTED_CHARS, MAX_EXCERPT_BYTES, REST_NOT_SHOWN, Command, Excerpt, Process
from toolwire.agent.tools.process_tree import ProcessTree
from toolwire.agent.tools.shell import Outcome, run, shell_argv
from toolwire.turns.tools.call import ToolError

Loop = Callable[[Coroutine[Any, Any, Any]], Any]
on_both_loops = pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def nobody(text: str) -> None:
    pass


def in_shell(line: str) -> Command:
    return Command(shell_argv(line), Path.cwd())


def in_python(source: str) -> Command:
    return Command((sys.executable, "-c", source), Path.cwd())


def in_terminal(line: str) -> Command:
    return Command(shell_argv(line), Path.cwd(), terminal=True)


async def run_command(command: Command, emit: Callable[[str], None] = nobody, seconds: float = 600) -> Outcome:
    return await run(command, emit, seconds)


async def run_into_timeout(command: Command, happened: Callable[[str], bool]) -> Outcome:
    """Run a command with a timeout in which something happens that its output tells; on a slow machine it is longer."""
    for doubled in range(9):
        outcome = await run(command, nobody, 0.4 * 2**doubled)
        assert outcome.timed_out
        if happened(outcome.output):
            return outcome
    pytest.fail("it never happened")


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] != b"Z"


def die_soon(pids: list[int]) -> bool:
    """The kernel takes a moment to end what was killed."""
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_alive, pids))


def running_with(word: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and is_alive(int(entry.name)):
            try:
                arguments = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in arguments:
                found.append(int(entry.name))
    return found


def written(path: Path) -> list[int]:
    text = path.read_text() if path.exists() else ""
    return [int(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


async def read_pids(path: Path, count: int) -> list[int]:
    """The process ids that a command writes, once they are all there."""
    await until(lambda: len(written(path)) >= count)
    return written(path)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.005)


def traces() -> tuple[int, set[int]]:
    """How many files we have open, and our children, also those that are dead and nobody has asked after."""
    parents = {int(stat.parent.name): parent_of(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    return len(os.listdir("/proc/self/fd")), {pid for pid, parent in parents.items() if parent == os.getpid()}


def is_clean(before: tuple[int, set[int]]) -> bool:
    """Whether nothing is left that was not there before; what others left may have gone."""
    files, children = traces()
    return files <= before[0] and children <= before[1]


def traces_before(loop: Loop) -> tuple[int, set[int]]:
    loop(asyncio.sleep(0))  # the first uvloop opens two files for good
    return traces()


def parent_of(stat: Path) -> int:
    try:
        return int(stat.read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


class TestExcerpt:
    @given(st.text(), st.lists(st.integers(0, 50)), st.integers(2, 60), st.integers(0, 80))
    def test_any_chunking_gives_the_same(self, text: str, cuts: list[int], limit: int, budget: int):
        whole, pieces = Excerpt(limit), Excerpt(limit)
        whole.add(text)
        edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
        for start, end in pairwise(edges):
            pieces.add(text[start:end])
        assert (whole.text(budget), whole.size, whole.lines) == (pieces.text(budget), pieces.size, pieces.lines)

    @given(st.text(alphabet="aä€😀\n"), st.integers(2, 40), st.integers(0, 60))
    def test_both_ends_are_kept_and_no_letter_is_cut(self, text: str, limit: int, budget: int):
        excerpt = Excerpt(limit)
        excerpt.add(text)
        shown = excerpt.text(budget)
        if excerpt.fits(budget):
            assert shown == text
            return
        head, marker, tail = shown.split("…")
        assert text.startswith(head)
        assert text.endswith(tail)
        lost = len(text.encode()) - len(head.encode()) - len(tail.encode())
        assert marker == f"{-(-lost // 4)} tokens truncated"

    def test_the_budget_is_shared_by_both_ends(self):
        excerpt = Excerpt(100)
        excerpt.add("a" * 500 + "b" * 500)
        assert excerpt.text(20) == "a" * 10 + "…245 tokens truncated…" + "b" * 10

    @pytest.mark.parametrize(("text", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n\n", 2)])
    def test_lines_are_counted_as_an_editor_does(self, text: str, lines: int):
        excerpt = Excerpt()
        excerpt.add(text)
        assert excerpt.lines == lines

    def test_tokens_are_estimated_as_codex_does(self):
        excerpt = Excerpt()
        excerpt.add("hi from tool\n")
        assert excerpt.tokens == 4  # recording codex-cli-client/02


IN_PIECES = r"""
import fcntl, os, termios, time
for piece in (b"a\xf0\x9f", b"\x98", b"\x80b"):
    os.write(1, piece)
    while fcntl.ioctl(1, termios.FIONREAD, bytes(4)) != bytes(4):
        time.sleep(0.005)
"""
"""Writes each piece when the one before has been read."""


@on_both_loops
class TestOutput:
    def test_output_and_errors_come_in_their_order(self, loop: Loop):
        outcome = loop(run_command(in_shell("echo one; echo two >&2; echo three")))
        assert (outcome.output, outcome.exit_code) == ("one\ntwo\nthree\n", 0)

    def test_output_is_shown_as_it_comes(self, loop: Loop, tmp_path: Path):
        came: list[str] = []
        gate = tmp_path / "gate"

        def emit(text: str) -> None:
            came.append(text)
            gate.touch()  # without which there is no more

        loop(run_command(in_shell(f"echo early; until [ -e {gate} ]; do sleep 0.01; done; echo late"), emit))
        assert came == ["early\n", "late\n"]

    def test_a_letter_that_comes_in_pieces_is_one(self, loop: Loop):
        came: list[str] = []
        outcome = loop(run_command(in_python(IN_PIECES), came.append))
        assert outcome.output == "a😀b"
        assert "".join(came) == "a😀b"

    def test_half_a_letter_at_the_end_is_not_lost_silently(self, loop: Loop):
        assert loop(run_command(in_shell(r"printf 'a\xf0\x9f'"))).output == "a\ufffd"

    def test_binary_output_is_readable_text(self, loop: Loop):
        outcome = loop(run_command(in_shell(r"printf 'a\xff\xfe\x00\xc3b'")))
        assert outcome.output == "a\ufffd\ufffd\x00\ufffdb"

    def test_fifty_megabytes_take_no_memory(self, loop: Loop):
        shown = 0
        last = ""

        def emit(text: str) -> None:
            nonlocal shown, last
            shown += len(text)
            last = text

        source = "import sys; print('first'); sys.stdout.write('x' * 50_000_000); print('last')"
        tracemalloc.start()
        try:
            outcome = loop(run_command(in_python(source), emit))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4_000_000
        assert outcome.output.startswith("first\nxxx")
        assert outcome.output.endswith("xxxlast\n")
        assert "…12490003 tokens truncated…" in outcome.output
        assert len(outcome.output) < MAX_EXCERPT_BYTES + 50
        assert shown == MAX_EMITTED_CHARS + len(REST_NOT_SHOWN)
        assert last.endswith(REST_NOT_SHOWN)

    def test_a_watcher_that_fails_does_not_hold_the_command(self, loop: Loop):
        def emit(text: str) -> None:
            raise RuntimeError(text)

        outcome = loop(run_command(in_shell(r"printf 'a\xf0'"), emit))
        assert (outcome.output, outcome.exit_code) == ("a\ufffd", 0)

    def test_a_command_has_no_input(self, loop: Loop):
        assert loop(run_command(in_shell("cat; echo done"))).output == "done\n"

    def test_a_command_has_no_terminal_of_ours(self, loop: Loop):
        assert loop(run_command(in_shell("exec 3</dev/tty"))).exit_code != 0

    def test_no_other_file_of_ours_is_open_in_it(self, loop: Loop):
        outcome = loop(run_command(in_python("import os; print(os.listdir('/proc/self/fd'))")))
        assert outcome.output == "['0', '1', '2', '3']\n"  # 3 is the listing itself

    def test_nobody_is_asked_and_nothing_is_coloured(self, loop: Loop):
        outcome = loop(run_command(in_shell('echo $TERM $PAGER $GIT_PAGER $NO_COLOR; test -n "$PATH"')))
        assert (outcome.output, outcome.exit_code) == ("dumb cat cat 1\n", 0)

    def test_a_command_has_its_own_variables(self, loop: Loop):
        command = Command(shell_argv("echo $MINE $TERM"), Path.cwd(), {"MINE": "yes", "TERM": "vt100"})
        assert loop(run_command(command)).output == "yes vt100\n"


@on_both_loops
class TestStarting:
    def test_an_unknown_program_is_an_error_for_the_model(self, loop: Loop):
        with pytest.raises(ToolError, match="cannot run 'no-such-program': No such file or directory"):
            loop(run_command(Command(("no-such-program",), Path.cwd())))

    def test_a_file_that_is_no_program_is_an_error_for_the_model(self, loop: Loop, tmp_path: Path):
        (tmp_path / "text").write_text("hello")
        with pytest.raises(ToolError, match="Permission denied"):
            loop(run_command(Command((str(tmp_path / "text"),), tmp_path)))

    @pytest.mark.parametrize("argument", ["a\0b", "\ud800"])
    def test_what_no_argument_can_hold_is_an_error_for_the_model(self, loop: Loop, argument: str):
        with pytest.raises(ToolError, match="cannot run 'echo'"):
            loop(run_command(Command(("echo", argument), Path.cwd())))

    def test_a_command_that_is_too_long_is_an_error_for_the_model(self, loop: Loop):
        with pytest.raises(ToolError, match="Argument list too long"):
            loop(run_command(in_shell(": " + "x" * 10_000_000)))

    def test_a_failed_start_leaves_no_file_open(self, loop: Loop):
        async def fail() -> None:
            with pytest.raises(ToolError):
                await run_command(Command(("no-such-program",), Path.cwd()))

        before = traces_before(loop)
        loop(fail())
        assert is_clean(before)


FAMILY = """
trap '' {ignored}
sleep 1000 &
echo $! >> {pids}
( sleep 1000 & echo $! >> {pids}; wait ) &
echo $$ >> {pids}
while true; do wait; done
"""


def process_tree(pids: Path, ignored: str = "USR1") -> Command:
    """A shell, a child and a grandchild, which wait for ever."""
    return in_shell(FAMILY.format(pids=shlex.quote(str(pids)), ignored=ignored))


def is_family(pids: Path) -> bool:
    """Whether a process tree has written down all its members; if not, the next one begins anew."""
    is_whole = len(written(pids)) == 3
    if not is_whole:
        pids.unlink(missing_ok=True)
    return is_whole


async def cancelled_once_running(command: Command, pids: Path, count: int) -> list[int]:
    task = asyncio.create_task(run_command(command))
    found = await read_pids(pids, count)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return found


@on_both_loops
class TestEnding:
    def test_an_exit_by_a_signal_is_told_as_a_shell_does(self, loop: Loop):
        assert loop(run_command(in_shell("kill -9 $$"))).exit_code == 128 + signal.SIGKILL

    def test_a_timeout_ends_the_command_with_its_children(self, loop: Loop, tmp_path: Path):
        pids = tmp_path / "pids"
        outcome = loop(run_into_timeout(process_tree(pids), lambda _: is_family(pids)))
        assert outcome.exit_code == 128 + signal.SIGTERM
        assert die_soon(written(pids))

    def test_who_does_not_end_when_asked_is_ended(self, loop: Loop, tmp_path: Path):
        pids = tmp_path / "pids"
        outcome = loop(run_into_timeout(process_tree(pids, "TERM"), lambda _: is_family(pids)))
        assert outcome.exit_code == 128 + signal.SIGKILL
        assert die_soon(written(pids))

    def test_who_is_asked_to_end_may_say_a_word(self, loop: Loop, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("toolwire.agent.tools.process.KILL_TIMEOUT", 60.0)
        command = in_shell("trap 'echo bye; exit 3' TERM; echo hello; while :; do :; done")
        outcome = loop(run_into_timeout(command, lambda output: "hello" in output))
        assert (outcome.output, outcome.exit_code) == ("hello\nbye\n", 3)

    def test_what_was_said_before_a_timeout_is_kept(self, loop: Loop):
        outcome = loop(run_into_timeout(in_shell("echo partly; sleep 1000"), bool))
        assert outcome.output == "partly\n"

    def test_cancelling_ends_the_command_with_its_children(self, loop: Loop, tmp_path: Path):
        command = process_tree(tmp_path / "pids")
        pids = loop(cancelled_once_running(command, tmp_path / "pids", 3))
        assert die_soon(pids)

    def test_cancelling_ends_who_does_not_listen(self, loop: Loop, tmp_path: Path):
        pids = loop(cancelled_once_running(process_tree(tmp_path / "pids", "TERM"), tmp_path / "pids", 3))
        assert die_soon(pids)

    def test_cancelling_twice_ends_it_at_once(self, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("toolwire.agent.tools.process.KILL_TIMEOUT", 600.0)

        async def cancel_twice() -> list[int]:
            task = asyncio.create_task(run_command(process_tree(tmp_path / "pids", "TERM")))
            pids = await read_pids(tmp_path / "pids", 3)
            task.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert die_soon(pids)
            return pids

        assert loop(cancel_twice())

    @pytest.mark.parametrize("ignored", ["USR1", "TERM"])
    @pytest.mark.parametrize("program", ["timeout 1000", "setsid --wait"])
    def test_cancelling_ends_what_left_the_group(self, loop: Loop, tmp_path: Path, program: str, ignored: str):
        needs(program.split(maxsplit=1)[0])
        pids = tmp_path / "pids"
        line = f"trap '' {ignored}; echo $$ >> {pids}; while :; do sleep 1; done"
        command = in_shell(f"{program} sh -c {shlex.quote(line)}; echo over")
        found = loop(cancelled_once_running(command, pids, 1))
        assert die_soon(found)

    @pytest.mark.parametrize("goes_on", [True, False], ids=["cancelled", "ended"])
    def test_a_daemon_that_nobody_is_the_parent_of_is_ended_too(self, loop: Loop, tmp_path: Path, goes_on: bool):
        needs("setsid")
        pids = tmp_path / "pids"
        daemon = f"(setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' >/dev/null 2>&1 &)"
        if goes_on:
            found = loop(cancelled_once_running(in_shell(f"{daemon}; sleep 1000"), pids, 1))
        else:
            loop(run_command(in_shell(f"{daemon}; while ! test -s {pids}; do sleep 0.01; done")))
            found = [int(pid) for pid in pids.read_text().split()]
        assert die_soon(found)

    @pytest.mark.parametrize("ticks", range(8))
    def test_cancelling_while_it_starts_leaves_nothing(self, loop: Loop, ticks: int):
        word = f"tick-{os.getpid()}-{ticks}-{loop.__module__}"

        async def cancel_early() -> None:
            task = asyncio.create_task(run_command(in_shell(f"sleep 1000; : {word}")))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        before = traces_before(loop)
        loop(cancel_early())
        assert running_with(word) == []
        assert is_clean(before)

    def test_leaving_the_loop_ends_what_nobody_stopped(self, loop: Loop, tmp_path: Path):
        async def forget() -> list[int]:
            Process(process_tree(tmp_path / "pids", "TERM"))
            return await read_pids(tmp_path / "pids", 3)

        before = traces_before(loop)
        assert die_soon(loop(forget()))
        assert is_clean(before)

    def test_leaving_the_loop_at_once_ends_what_has_just_started(self, loop: Loop):
        word = f"at-once-{os.getpid()}"

        async def forget() -> None:
            Process(in_shell(f"sleep 1000; : {word}"))

        before = traces_before(loop)
        loop(forget())
        assert running_with(word) == []
        assert is_clean(before)


@on_both_loops
class TestBackground:
    def test_a_child_that_holds_the_pipe_does_not_hold_the_call(self, loop: Loop):
        outcome = loop(run_command(in_shell("sleep 1000 & echo $!"), seconds=120))
        assert outcome.exit_code == 0
        assert outcome.seconds < 120, "no timeout has ended it"
        assert die_soon([int(outcome.output)])

    def test_a_child_without_the_pipe_is_ended_too(self, loop: Loop):
        outcome = loop(run_command(in_shell("sleep 1000 >/dev/null 2>&1 & echo $!"), seconds=120))
        assert outcome.seconds < 120, "no timeout has ended it"
        assert die_soon([int(outcome.output)])

    def test_a_child_that_does_not_listen_is_ended_too(self, loop: Loop):
        outcome = loop(run_command(in_shell("trap '' TERM; sleep 1000 & echo $!"), seconds=120))
        assert outcome.seconds < 120, "no timeout has ended it"
        assert die_soon([int(outcome.output)])

    def test_a_job_in_a_group_of_its_own_is_ended_too(self, loop: Loop):
        outcome = loop(run_command(in_shell("set -m; sleep 1000 >/dev/null 2>&1 & echo $!")))
        assert die_soon([int(outcome.output)])

    def test_what_a_child_says_at_once_is_heard(self, loop: Loop, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("toolwire.agent.tools.process.DRAIN_TIMEOUT", 60.0)
        assert loop(run_command(in_shell("(sleep 0.01; echo child) & echo parent"))).output == "parent\nchild\n"


@on_both_loops
class TestTerminal:
    def test_a_terminal_is_the_commands_own(self, loop: Loop):
        line = "test -t 0 && test -t 1 && test -t 2 && echo hello >/dev/tty; stty size; test $(ps -o tpgid= -p $$) = $(ps -o pgid= -p $$) && echo front"
        needs("stty", "ps")
        assert loop(run_command(in_terminal(line))).output == "hello\r\n24 80\r\nfront\r\n"

    def test_what_is_written_is_read(self, loop: Loop):
        async def talk() -> tuple[int, str]:
            process = Process(in_terminal("read line; echo got $line"))
            written = await process.write(b"hello\n", 60)
            await process.wait(60)
            await process.stop()
            return written, process.output.text()

        assert loop(talk()) == (6, "hello\r\ngot hello\r\n")

    def test_who_leaves_the_terminal_may_end_in_peace(self, loop: Loop):
        assert loop(run_command(in_terminal("exec 0<&- 1>&- 2>&-; sleep 0.3; exit 4"))).exit_code == 4

    def test_control_c_interrupts(self, loop: Loop):
        async def interrupt() -> int | None:
            process = Process(in_terminal("echo ready; sleep 1000; echo never"))
            await until(lambda: bool(process.output.size))
            await process.write(b"\x03", 60)
            await process.wait(60)
            await process.stop()
            return process.exit_code

        assert loop(interrupt()) == 128 + signal.SIGINT

    def test_more_than_a_terminal_holds_is_read_whole(self, loop: Loop):
        text = b"".join(b"%05d\n" % number for number in range(20_000))

        async def paste() -> tuple[int, str]:
            source = (
                "import sys\nn = 0\nfor line in sys.stdin:\n n += 1\n if line == '19999\\n': break\nprint('lines', n)"
            )
            command = Command(
                ("sh", "-c", f"stty -echo; echo ready; exec {sys.executable} -c {shlex.quote(source)}"),
                Path.cwd(),
                terminal=True,
            )
            process = Process(command)
            await until(lambda: bool(process.output.size))
            process.take()
            written = await process.write(text, 60)
            await process.wait(60)
            await process.stop()
            return written, process.output.text()

        assert loop(paste()) == (len(text), "lines 20000\r\n")

    def test_who_does_not_read_does_not_hold_the_writer(self, loop: Loop):
        async def paste() -> int:
            process = Process(in_terminal("stty raw -echo; echo ready; sleep 1000"))
            await until(lambda: bool(process.output.size))
            written = await process.write(b"x" * 1_000_000, 0.3)
            await process.stop()
            return written

        assert loop(paste()) < 1_000_000

    def test_the_jobs_of_an_interactive_shell_are_ended(self, loop: Loop, tmp_path: Path):
        pids = tmp_path / "pids"

        async def work() -> list[int]:
            process = Process(Command(("bash", "--norc", "-i"), tmp_path, terminal=True))
            await process.write(b"sleep 1000 & sleep 1001 & echo $! >> pids; jobs -p >> pids; nohup sleep 1002\n", 60)
            found = await read_pids(pids, 3)
            await process.stop()
            return found

        assert die_soon(loop(work()))


DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
for number in range(3):
    os.close(number)
open(sys.argv[1], "w").write(str(os.getpid()) + "\\n")
import time
time.sleep(1000)
"""
"""Leaves its parents, its session and its group, and the pipe."""


@on_both_loops
class TestDaemons:
    """A process that nothing ties to its command but that it comes from there."""

    def daemon(self, pids: Path) -> str:
        return (
            f"env -i {sys.executable} -I -S -c {shlex.quote(DAEMON)} {pids}; until [ -s {pids} ]; do sleep 0.01; done"
        )

    @pytest.mark.parametrize("make", [in_shell, in_terminal], ids=["pipe", "terminal"])
    @pytest.mark.skipif(sys.platform != "linux", reason="another platform: only Linux can adopt orphans")
    def test_it_ends_with_its_command(self, loop: Loop, tmp_path: Path, make: Callable[[str], Command]):
        outcome = loop(run_command(make(f"{self.daemon(tmp_path / 'pids')}; exit 3")))
        assert outcome.exit_code == 3
        assert die_soon(written(tmp_path / "pids"))

    @pytest.mark.skipif(sys.platform != "linux", reason="another platform: only Linux can adopt orphans")
    def test_it_ends_when_its_command_is_stopped(self, loop: Loop, tmp_path: Path):
        pids = tmp_path / "pids"
        loop(run_into_timeout(in_shell(f"{self.daemon(pids)}; sleep 1000"), lambda _: bool(written(pids))))
        assert die_soon(written(pids))

    @pytest.mark.skipif(sys.platform != "linux", reason="another platform: only Linux can adopt orphans")
    def test_that_of_another_command_goes_on(self, loop: Loop, tmp_path: Path):
        async def work() -> None:
            process = Process(in_shell(f"{self.daemon(tmp_path / 'pids')}; sleep 1000"))
            pids = await read_pids(tmp_path / "pids", 1)
            await run_command(in_shell(self.daemon(tmp_path / "others")))
            assert die_soon(written(tmp_path / "others"))
            assert all(map(is_alive, pids))
            await process.stop()
            assert die_soon(pids)

        loop(work())


LEFT = {
    "its child": "echo $$ >> {pids}; sleep 1000 & echo $! >> {pids}; wait",
    "who does not listen": "trap '' TERM; echo $$ >> {pids}; echo $$ >> {pids}; while :; do sleep 0.02; done",
    "a session of its own": "setsid sh -c 'echo $$ >> {pids}; sleep 1000' & echo $$ >> {pids}; wait",
    "what the command left behind": "for n in 1 2; do (setsid sh -c 'echo $$ >> {pids}; sleep 1000' &); done",
}


@pytest.mark.skipif(sys.platform != "linux", reason="another platform: only Linux can adopt orphans")
@pytest.mark.parametrize("name", LEFT)
def test_a_command_ends_with_all_its_processes_when_its_reader_was_killed(name: str, tmp_path: Path):
    pids = tmp_path / "pids"
    reading, report = os.pipe()
    line = LEFT[name].format(pids=pids)
    argv = (sys.executable, "-I", "-S", supervisor.__file__, str(report), "sh", "-c", line)
    with subprocess.Popen(argv, pass_fds=(report,), start_new_session=True, stdout=subprocess.DEVNULL) as process:
        os.close(report)
        asyncio.run(read_pids(pids, 2))
        if name == "what the command left behind":
            assert os.read(reading, 16) == b"0"
        assert all(map(is_alive, written(pids)))
        os.close(reading)
        assert process.wait(60) == 0
    assert die_soon(written(pids))


@on_both_loops
class TestLeaks:
    def test_many_commands_leave_nothing(self, loop: Loop):
        async def work() -> None:
            await run_command(in_shell("true"))
            before = traces()
            for number in range(40):
                match number % 4:
                    case 0:
                        await run_command(in_shell("echo hello"))
                    case 1:
                        await run_command(in_terminal("echo hello"))
                    case 2:
                        await run_command(in_shell("sleep 1000 >/dev/null 2>&1 &"))
                    case _:
                        await asyncio.gather(*(run_command(in_shell("exit 1")) for _ in range(4)))
            assert is_clean(before)
            assert len(asyncio.all_tasks()) == 1

        loop(work())

    def test_many_cancelled_commands_leave_nothing(self, loop: Loop):
        async def work() -> None:
            await run_command(in_shell("true"))
            before = traces()
            for batch in range(6):
                commands = [in_shell("sleep 1000"), in_terminal("sleep 1000")] * 5
                tasks = [asyncio.create_task(run_command(command)) for command in commands]
                await asyncio.sleep(0.01 * batch)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            assert len(asyncio.all_tasks()) == 1
            assert is_clean(before)

        loop(work())


class TestOtherSystems:
    """What is there on Linux only, taken away."""

    def test_a_group_is_ended_without_proc(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        def listdir(path: str) -> list[str]:
            raise FileNotFoundError(path)

        monkeypatch.setattr(os, "listdir", listdir)
        pids = tmp_path / "pids"
        outcome = asyncio.run(run_into_timeout(process_tree(pids, "TERM"), lambda _: is_family(pids)))
        assert outcome.exit_code == 128 + signal.SIGKILL
        assert die_soon(written(pids))


def test_nobody_is_left_of_a_process_that_is_gone():
    assert ProcessTree(2**22 + 1).list_living() == set()
