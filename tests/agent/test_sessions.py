"""Sessions of unified exec: commands that go on between calls."""

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tests.agent.test_process import Loop, die_soon, is_alive, is_clean, on_both_loops, read_pids, traces_before, until
from toolwire.agent.tools.shell import SESSION_IDS, STDIN_CLOSED, Sessions
from toolwire.turns.tools.call import FunctionPayload, ToolCall, ToolError
from toolwire.turns.tools.registry import Context, Registry

ANSWER = re.compile(
    r"Chunk ID: [0-9a-f]{6}\n"
    r"Wall time: \d+\.\d{4} seconds\n"
    r"(?:Process exited with code (?P<code>\d+)|Process running with session ID (?P<session>\d+))\n"
    r"Original token count: (?P<tokens>\d+)\n"
    r"Output:\n(?P<output>.*)",
    re.DOTALL,
)


LONG = 300_000
"""Milliseconds of a call that the end of its command ends."""


@pytest.fixture(autouse=True)
def yields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short calls are shorter here, and long ones are as long as a slow machine needs."""
    monkeypatch.setattr("toolwire.agent.tools.shell.MIN_YIELD_MS", 20.0)
    monkeypatch.setattr("toolwire.agent.tools.shell.MIN_POLL_MS", 20.0)
    monkeypatch.setattr("toolwire.agent.tools.shell.MAX_YIELD_MS", float(LONG))


def gated(before: str, gate: str, after: str) -> str:
    """A line of shell that waits for a file in between."""
    return f"{before}; until [ -e {gate} ]; do sleep 0.01; done; {after}"


class Answer(msgspec.Struct):
    code: int | None
    session: int
    tokens: int
    output: str


class Model:
    """Calls the tools as a model does, and reads what they say."""

    def __init__(self, sessions: Sessions, context: Context) -> None:
        self.sessions = sessions
        self.context = context
        self._registry = Registry(sessions.tools)

    async def call(self, name: str, **arguments: object) -> Answer:
        tool = self._registry.get(name)
        assert tool is not None
        payload = FunctionPayload(msgspec.json.encode(arguments).decode())
        return self.read((await tool.run(ToolCall(name, "call_1", payload), self.context)).text)

    @staticmethod
    def read(text: str) -> Answer:
        match = ANSWER.fullmatch(text)
        assert match is not None, text
        code = match["code"]
        return Answer(int(code) if code else None, int(match["session"] or 0), int(match["tokens"]), match["output"])

    async def start(self, cmd: str, **arguments: object) -> Answer:
        return await self.call("exec_command", cmd=cmd, **{"yield_time_ms": 20, **arguments})

    async def write(self, session: int, chars: str, **arguments: object) -> Answer:
        return await self.call("write_stdin", session_id=session, chars=chars, **arguments)

    async def poll(self, session: int) -> Answer:
        return await self.write(session, "")

    async def finish(self, session: int) -> Answer:
        """Poll until the session has ended."""
        return await self.write(session, "", yield_time_ms=LONG)

    async def start_until(self, word: str, cmd: str, **arguments: object) -> Answer:
        """Start a command, and read on until a word has come."""
        answer = await self.start(cmd, **arguments)
        return await self.read_until(answer, word)

    async def kill(self, session: int) -> Answer:
        return await self.call("kill_session", session_id=session)

    async def write_until(self, session: int, chars: str, word: str) -> Answer:
        """Write, and read on until a word has come; the machine may be slow."""
        return await self.read_until(await self.write(session, chars), word)

    async def read_until(self, answer: Answer, word: str) -> Answer:
        deadline = time.monotonic() + 60
        while word not in answer.output and answer.code is None:
            assert time.monotonic() < deadline, answer
            more = await self.poll(answer.session)
            answer = msgspec.structs.replace(more, output=answer.output + more.output)
        return answer


def talk(
    loop: Loop,
    cwd: Path,
    talk: Callable[[Model], Awaitable[None]],
    *,
    writable: bool = True,
    most: int = 64,
    shown: list[str] | None = None,
) -> list[str]:
    """A conversation of a model with sessions that are closed at its end; what was shown of it."""
    shown = [] if shown is None else shown

    async def whole() -> None:
        sessions = Sessions(most)
        try:
            await talk(Model(sessions, Context(cwd, shown.append, writable=writable)))
        finally:
            await sessions.close()
        assert len(asyncio.all_tasks()) == 1

    before = traces_before(loop)
    loop(whole())
    assert is_clean(before)
    return shown


async def has_ended(pids: list[int]) -> None:
    """Wait until the supervisors of commands are gone, which are the parents of their shells."""
    await until(lambda: not any(map(is_alive, pids)))


@on_both_loops
class TestExecCommand:
    def test_a_short_command_answers_as_in_codex(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            answer = await model.start("echo hi from tool", yield_time_ms=LONG)
            assert answer == Answer(0, 0, 4, "hi from tool\n")  # recording codex-cli-client/02
            assert len(model.sessions) == 0

        talk(loop, tmp_path, work)

    def test_a_command_fails_with_its_code(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            assert await model.start("echo no >&2; exit 7", yield_time_ms=LONG) == Answer(7, 0, 1, "no\n")

        talk(loop, tmp_path, work)

    def test_a_long_command_goes_on(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            answer = await model.start_until("\n", gated("echo begun", "gate", "echo done"))
            assert (answer.code, answer.output) == (None, "begun\n")
            assert answer.session in SESSION_IDS
            (tmp_path / "gate").touch()
            assert await model.finish(answer.session) == Answer(0, 0, 2, "done\n")
            assert len(model.sessions) == 0

        assert "".join(talk(loop, tmp_path, work)) == "begun\ndone\n"

    def test_a_command_runs_in_its_directory(self, loop: Loop, tmp_path: Path):
        (tmp_path / "below").mkdir()

        async def work(model: Model) -> None:
            assert (await model.start("pwd", workdir="below", yield_time_ms=LONG)).output == f"{tmp_path}/below\n"

        talk(loop, tmp_path, work)

    def test_cancelling_a_new_command_ends_it(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            call = asyncio.create_task(model.start("sleep 1000 & echo $! > pids; wait", yield_time_ms=LONG))
            pids = await read_pids(tmp_path / "pids", 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert die_soon(pids)
            assert len(model.sessions) == 0

        talk(loop, tmp_path, work)

    def test_what_a_finished_command_left_is_ended(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            answer = await model.start("sleep 1000 & echo $!", yield_time_ms=LONG)
            assert answer.code == 0
            assert die_soon([int(answer.output)])

        talk(loop, tmp_path, work)


@on_both_loops
class TestTerminal:
    def test_cat_echoes(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            session = (await model.start_until("ready", "stty -echo; printf ready; exec cat", tty=True)).session
            assert (await model.write_until(session, "grüße 😀\n", "\n")).output == "grüße 😀\r\n"
            assert (await model.write_until(session, "\x04", "never")).code == 0

        talk(loop, tmp_path, work)

    def test_python_remembers(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            session = (await model.start(f"{sys.executable} -q -i", tty=True)).session
            await model.write_until(session, "x = 6 * 7\n", ">>> ")
            assert "answer 42" in (await model.write_until(session, "print('answer', x)\n", "answer 42")).output
            assert (await model.write_until(session, "exit(5)\n", "never")).code == 5

        talk(loop, tmp_path, work)

    def test_control_c_stops_what_runs(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            cmd = "trap 'echo caught; exit 9' INT; echo ready; read line"
            session = (await model.start_until("ready", cmd, tty=True)).session
            answer = await model.write_until(session, "\x03", "caught")
            assert (await model.finish(session) if answer.code is None else answer).code == 9

        talk(loop, tmp_path, work)

    def test_what_ended_between_two_calls_is_told_once(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            line = gated("stty -echo; echo $PPID > pids; read line", "gate", "echo late; exit 4")
            session = (await model.start(line, tty=True)).session
            pids = await read_pids(tmp_path / "pids", 1)
            await model.write(session, "go\n")
            (tmp_path / "gate").touch()
            await has_ended(pids)
            assert await model.write(session, "too late\n") == Answer(4, 0, 2, "late\r\n")
            with pytest.raises(ToolError, match=f"write_stdin failed: Unknown process id {session}"):
                await model.poll(session)

        talk(loop, tmp_path, work)

    def test_a_process_that_does_not_read_is_told_of(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            session = (await model.start_until("ready", "stty raw -echo; echo ready; sleep 1000", tty=True)).session
            with pytest.raises(ToolError, match=r"the process took \d+ of 1000000 bytes"):
                await model.write(session, "x" * 1_000_000)

        talk(loop, tmp_path, work)


@on_both_loops
class TestPolling:
    def test_a_poll_waits_and_gives_only_what_is_new(self, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        async def work(model: Model) -> None:
            line = gated("echo 1", "second", gated("echo 2", "third", "echo 3"))
            session = (await model.start_until("1\n", line)).session
            answer = await model.poll(session)
            assert (answer.session, answer.output) == (session, ""), "only what is new"
            monkeypatch.setattr("toolwire.agent.tools.shell.MIN_POLL_MS", float(LONG))
            poll = asyncio.create_task(model.poll(session))
            (tmp_path / "second").touch()
            await until(lambda: "2\n" in shown)
            (tmp_path / "third").touch()
            answer = await poll
            assert (answer.code, answer.output) == (0, "2\n3\n"), "it has waited"

        shown: list[str] = []
        talk(loop, tmp_path, work, shown=shown)

    def test_a_poll_ends_with_the_process(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            session = (await model.start(gated(":", "gate", "exit 2"))).session
            (tmp_path / "gate").touch()
            assert (await model.finish(session)).code == 2

        talk(loop, tmp_path, work)

    def test_a_cancelled_poll_loses_nothing(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            line = gated(gated(":", "first", "echo kept"), "second", "echo more")
            session = (await model.start(line)).session
            poll = asyncio.create_task(model.finish(session))
            (tmp_path / "first").touch()
            await until(lambda: "kept\n" in shown)
            poll.cancel()
            with pytest.raises(asyncio.CancelledError):
                await poll
            (tmp_path / "second").touch()
            assert await model.finish(session) == Answer(0, 0, 3, "kept\nmore\n")

        shown: list[str] = []
        talk(loop, tmp_path, work, shown=shown)

    def test_a_letter_between_two_polls_is_not_cut(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            answer = await model.start_until("a", gated(r"printf 'a\xe2\x82'", "gate", r"printf '\xacb'"))
            assert (answer.output, answer.tokens) == ("a", 1)
            (tmp_path / "gate").touch()
            assert (await model.finish(answer.session)).output == "€b"

        talk(loop, tmp_path, work)


class TestBounds:
    def test_output_is_cut_to_the_budget(self, tmp_path: Path):
        async def work(model: Model) -> None:
            answer = await model.start("seq 1000", max_output_tokens=5, yield_time_ms=LONG)
            assert answer.tokens == 974
            assert answer.output == (
                "Warning: truncated output (original token count: 974)\nTotal output lines: 1000\n\n"
                "1\n2\n3\n4\n5\n…969 tokens truncated…\n999\n1000\n"
            )

        talk(asyncio.run, tmp_path, work)

    def test_no_budget_is_larger_than_the_most(self, tmp_path: Path):
        async def work(model: Model) -> None:
            answer = await model.start("seq 100000", max_output_tokens=10**9, yield_time_ms=LONG)
            assert len(answer.output) < 40_200

        talk(asyncio.run, tmp_path, work)

    def test_output_that_nobody_asks_for_is_bounded_too(self, tmp_path: Path):
        async def work(model: Model) -> None:
            answer = await model.start(gated(":", "gate", "seq 1000000"))
            (tmp_path / "gate").touch()
            answer = await model.finish(answer.session)
            assert answer.tokens == 1_722_224
            assert "\n1\n2\n" in answer.output
            assert answer.output.endswith("\n1000000\n")
            assert len(answer.output) < 40_200

        talk(asyncio.run, tmp_path, work)

    def test_too_many_sessions_are_refused(self, tmp_path: Path):
        async def work(model: Model) -> None:
            first = await model.start("sleep 1000")
            await model.start("sleep 1000")
            with pytest.raises(ToolError, match="there are 2 sessions already: end one with kill_session"):
                await model.start("sleep 1000")
            await model.kill(first.session)
            assert (await model.start("sleep 1000")).session

        talk(asyncio.run, tmp_path, work, most=2)

    def test_parallel_starts_share_the_bound(self, tmp_path: Path):
        async def work(model: Model) -> None:
            starts = (model.start("sleep 1000") for _ in range(5))
            answers = await asyncio.gather(*starts, return_exceptions=True)
            assert [type(answer) for answer in answers] == [Answer] * 3 + [ToolError] * 2

        talk(asyncio.run, tmp_path, work, most=3)

    def test_the_oldest_finished_session_makes_room(self, tmp_path: Path):
        async def work(model: Model) -> None:
            line = gated("echo $PPID >> pids", "gate", "echo mine")
            old, new = [(await model.start(line)).session for _ in range(2)]
            running = (await model.start("sleep 1000")).session
            pids = await read_pids(tmp_path / "pids", 2)
            (tmp_path / "gate").touch()
            await has_ended(pids)
            await model.start("sleep 1000")
            with pytest.raises(ToolError, match="Unknown process id"):
                await model.poll(old)
            assert (await model.poll(new)).output == "mine\n"
            assert (await model.kill(running)).code == 143

        talk(asyncio.run, tmp_path, work, most=3)


class TestRefusals:
    def test_nothing_starts_in_read_only_mode(self, tmp_path: Path):
        async def work(model: Model) -> None:
            with pytest.raises(ToolError, match="read-only mode: "):
                await model.start("touch made")

        talk(asyncio.run, tmp_path, work, writable=False)
        assert not (tmp_path / "made").exists()

    def test_read_only_mode_lets_a_session_be_read_and_ended_but_not_written(self, tmp_path: Path):
        async def work(model: Model) -> None:
            session = (await model.start(gated("echo ready", "gate", "echo set"), tty=True)).session
            other = (await model.start("sleep 1000")).session
            reader = Model(model.sessions, msgspec.structs.replace(model.context, writable=False))
            with pytest.raises(ToolError, match="read-only mode: "):
                await reader.write(session, "touch made\n")
            (tmp_path / "gate").touch()
            assert "set" in (await reader.finish(session)).output
            assert (await reader.kill(other)).code == 143

        talk(asyncio.run, tmp_path, work)

    def test_without_a_terminal_there_is_no_input(self, tmp_path: Path):
        async def work(model: Model) -> None:
            assert (await model.start("cat; echo done", yield_time_ms=LONG)).output == "done\n"
            session = (await model.start("sleep 1000")).session
            with pytest.raises(ToolError, match=f"write_stdin failed: {STDIN_CLOSED}"):
                await model.write(session, "hello\n")

        talk(asyncio.run, tmp_path, work)

    def test_a_directory_outside_is_refused(self, tmp_path: Path):
        async def work(model: Model) -> None:
            with pytest.raises(ToolError, match="outside"):
                await model.start("pwd", workdir="/")

        talk(asyncio.run, tmp_path, work)

    @pytest.mark.parametrize("tool", ["write_stdin", "kill_session"])
    def test_an_unknown_session_is_an_error_for_the_model(self, tmp_path: Path, tool: str):
        async def work(model: Model) -> None:
            with pytest.raises(ToolError, match=f"{tool} failed: Unknown process id 5"):
                await model.call(tool, session_id=5)

        talk(asyncio.run, tmp_path, work)

    def test_closed_sessions_stay_closed(self, tmp_path: Path):
        async def work(model: Model) -> None:
            await model.sessions.close()
            with pytest.raises(ToolError, match="the sessions are closed"):
                await model.start("true")

        talk(asyncio.run, tmp_path, work)


@on_both_loops
class TestEnding:
    def test_killing_a_session_ends_its_children_and_tells_the_rest(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            line = gated("sleep 1000 & echo $! > pids", "gate", "echo rest; wait")
            session = (await model.start(line, tty=True)).session
            pids = await read_pids(tmp_path / "pids", 1)
            poll = asyncio.create_task(model.finish(session))
            (tmp_path / "gate").touch()
            await until(lambda: "rest\r\n" in shown)
            poll.cancel()
            answer = await model.kill(session)
            assert (answer.code, answer.output) == (143, "rest\r\n")
            assert die_soon(pids)
            assert len(model.sessions) == 0

        shown: list[str] = []
        talk(loop, tmp_path, work, shown=shown)

    def test_a_poll_under_way_sees_a_session_killed(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            session = (await model.start("sleep 1000")).session
            poll = asyncio.create_task(model.finish(session))
            await asyncio.sleep(0)
            assert (await model.kill(session)).code == 143
            assert (await poll).code == 143

        talk(loop, tmp_path, work)

    def test_closing_ends_all_sessions(self, loop: Loop, tmp_path: Path):
        pids: list[int] = []

        async def work(model: Model) -> None:
            stubborn = "trap '' TERM HUP; echo $$ >> pids; while true; do sleep 1; done"
            await asyncio.gather(*(model.start(stubborn, tty=tty) for tty in (True, False, True, False)))
            pids.extend(await read_pids(tmp_path / "pids", 4))

        talk(loop, tmp_path, work)
        assert len(pids) == 4
        assert die_soon(pids)

    def test_closing_ends_a_call_under_way(self, loop: Loop, tmp_path: Path):
        async def work(model: Model) -> None:
            call = asyncio.create_task(model.start("sleep 1000", yield_time_ms=LONG))
            await until(lambda: len(model.sessions) == 1)
            await model.sessions.close()
            assert (await call).code == 143

        talk(loop, tmp_path, work)


class TestTools:
    def test_two_are_parallel_and_all_write(self):
        tools = Sessions().tools
        assert [(tool.name, tool.parallel, tool.writes) for tool in tools] == [
            ("exec_command", True, True),
            ("write_stdin", True, True),
            ("kill_session", False, True),
        ]

    def test_the_parameters_are_those_of_codex(self):
        exec_command, write_stdin, _ = (msgspec.json.decode(tool.parameters or b"") for tool in Sessions().tools)
        rights = {"sandbox_permissions", "justification"}
        assert set(exec_command["properties"]) == {
            "cmd",
            "workdir",
            "tty",
            "yield_time_ms",
            "max_output_tokens",
            *rights,
        }
        assert set(write_stdin["properties"]) == {"session_id", "chars", "yield_time_ms", "max_output_tokens"}
        assert (exec_command["required"], write_stdin["required"]) == (["cmd"], ["session_id"])

    def test_the_payload_of_sessions_is_read(self, tmp_path: Path):
        async def work(model: Model) -> None:
            exec_command = model.sessions.tools[0]
            call = ToolCall("exec_command", "call_1", FunctionPayload('{"cmd": "echo hi"}'))
            assert Model.read((await exec_command.run(call, model.context)).text).output == "hi\n"

        talk(asyncio.run, tmp_path, work)

    def test_numbers_may_come_as_floats(self, tmp_path: Path):
        async def work(model: Model) -> None:
            answer = await model.start("sleep 1000", yield_time_ms=20.0, max_output_tokens=100.0)
            assert (await model.call("kill_session", session_id=float(answer.session))).code == 143

        talk(asyncio.run, tmp_path, work)
