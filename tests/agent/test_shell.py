"""`Bash` and `local_shell`: what the model asks, and what it reads."""

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.agent.test_process import read_pids
from toolwire.agent.tools.process import DEFAULT_TIMEOUT, MAX_TIMEOUT
from toolwire.agent.tools.shell import bash, local_shell
from toolwire.turns.tools.call import CustomPayload, FunctionPayload, LocalShellPayload, Payload, ToolCall, ToolError
from toolwire.turns.tools.calls import CallHooks, TurnCalls
from toolwire.turns.tools.registry import Context, Registry, Result, Tool


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path, lambda text: None)


def function(tool: Tool, **arguments: object) -> ToolCall:
    return ToolCall(tool.name, "call_1", FunctionPayload(msgspec.json.encode(arguments).decode()))


def call(tool: Tool, payload: Payload) -> ToolCall:
    return ToolCall(tool.name, "call_1", payload)


def run_bash(context: Context, command: str, **arguments: object) -> Result:
    return asyncio.run(bash.run(function(bash, command=command, **arguments), context))


def run_local(context: Context, payload: LocalShellPayload) -> Result:
    return asyncio.run(local_shell.run(call(local_shell, payload), context))


def lines(result: Result) -> list[str]:
    return re.sub(r"\d+\.\d seconds", "N seconds", result.text).splitlines()


class TestBash:
    def test_output_comes_with_the_wall_time(self, context: Context):
        result = run_bash(context, "echo hello; echo world >&2")
        assert lines(result) == ["Wall time: N seconds", "Output:", "hello", "world"]
        assert not result.failed

    def test_a_failure_comes_with_its_exit_code(self, context: Context):
        result = run_bash(context, "echo no; exit 3")
        assert lines(result) == ["Exit code: 3", "Wall time: N seconds", "Output:", "no"]
        assert result.failed

    def test_a_timeout_is_told_with_the_output_so_far(self, context: Context):
        for timeout in (0.4, 1.6, 6.4, 25.6, 102.4):  # as much as this machine needs for the first word
            result = run_bash(context, "echo partly; sleep 1000", timeout=timeout)
            if "partly" in result.text:
                break
        assert lines(result) == [
            "Timed out and was stopped after N seconds",
            "Wall time: N seconds",
            "Output:",
            "partly",
        ]
        assert result.failed

    def test_a_command_runs_in_the_working_directory(self, context: Context):
        assert lines(run_bash(context, "pwd"))[-1] == str(context.cwd)

    def test_a_command_runs_in_a_directory_below(self, context: Context):
        (context.cwd / "below").mkdir()
        assert lines(run_bash(context, "pwd", cwd="below"))[-1] == str(context.cwd / "below")

    def test_a_command_runs_in_another_root(self, context: Context, tmp_path_factory: pytest.TempPathFactory):
        other = tmp_path_factory.mktemp("other")
        context = msgspec.structs.replace(context, roots=(context.cwd, other))
        assert lines(run_bash(context, "pwd", cwd=str(other)))[-1] == str(other)

    @pytest.mark.parametrize("cwd", ["..", "/", "link"])
    def test_a_command_does_not_start_outside_the_roots(self, context: Context, cwd: str):
        (context.cwd / "link").symlink_to("/")
        with pytest.raises(ToolError, match="outside"):
            run_bash(context, "pwd", cwd=cwd)

    def test_a_working_directory_must_be_there(self, context: Context):
        (context.cwd / "file").touch()
        for cwd in ("nowhere", "file"):
            with pytest.raises(ToolError, match="is not a directory"):
                run_bash(context, "pwd", cwd=cwd)

    def test_nothing_runs_in_read_only_mode(self, context: Context):
        with pytest.raises(ToolError, match="read-only mode: "):
            run_bash(msgspec.structs.replace(context, writable=False), "touch made")
        assert not (context.cwd / "made").exists()

    def test_output_is_shown_as_it_comes(self, context: Context):
        shown: list[str] = []
        run_bash(msgspec.structs.replace(context, emit=shown.append), "echo one; sleep 0.3; echo two")
        assert shown == ["one\n", "two\n"]

    def test_long_output_says_what_is_missing(self, context: Context):
        text = run_bash(context, "seq 100000").text
        assert re.search(r"\n1\n2\n(.|\n)*…\d+ tokens truncated…(.|\n)*\n99999\n100000\n$", text)
        assert len(text) < 50_000

    def test_arguments_must_fit(self, context: Context):
        with pytest.raises(ToolError, match="invalid arguments for Bash"):
            asyncio.run(bash.run(function(bash, cmd="true"), context))

    def test_free_text_is_no_command(self, context: Context):
        with pytest.raises(ToolError, match="not free text"):
            asyncio.run(bash.run(call(bash, CustomPayload("true")), context))

    def test_the_description_tells_the_bounds(self):
        described = bash.parameters or b""
        assert f"{DEFAULT_TIMEOUT:.0f}; at most {MAX_TIMEOUT:.0f}".encode() in bytes(described)
        assert (bash.name, bash.parallel, bash.writes) == ("Bash", False, True)


class TestLocalShell:
    def test_a_program_gets_its_arguments_as_they_are(self, context: Context):
        result = run_local(context, LocalShellPayload(("printf", "%s|", "a b", "$HOME", "*")))
        assert lines(result) == ["Wall time: N seconds", "Output:", "a b|$HOME|*|"]

    def test_the_recorded_call_of_codex_runs(self, context: Context, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("toolwire.agent.tools.shell.MIN_TIMEOUT", 600.0)
        payload = LocalShellPayload(("echo", "hi"), timeout_ms=1000, env={})  # recording codex-cli-client/05
        assert lines(run_local(context, payload))[-1] == "hi"

    def test_it_can_be_called_as_a_function(self, context: Context):
        result = asyncio.run(local_shell.run(function(local_shell, command=["echo", "hi"]), context))
        assert lines(result)[-1] == "hi"

    def test_directory_and_variables_are_the_calls(self, context: Context):
        (context.cwd / "below").mkdir()
        command = ("sh", "-c", "pwd; echo $WORD $PAGER")
        result = run_local(context, LocalShellPayload(command, "below", env={"WORD": "hello"}))
        assert lines(result)[-2:] == [str(context.cwd / "below"), "hello cat"]

    def test_a_timeout_is_in_milliseconds(self, context: Context):
        result = run_local(context, LocalShellPayload(("sleep", "1000"), timeout_ms=300))
        assert lines(result)[0] == "Timed out and was stopped after N seconds"

    def test_an_exit_by_a_signal_is_a_failure(self, context: Context):
        result = run_local(context, LocalShellPayload(("sh", "-c", "kill -TERM $$")))
        assert lines(result)[0] == f"Exit code: {128 + signal.SIGTERM}"
        assert result.failed

    def test_no_command_is_an_error(self, context: Context):
        with pytest.raises(ToolError, match="missing command"):
            run_local(context, LocalShellPayload(()))

    def test_a_directory_outside_is_refused(self, context: Context):
        with pytest.raises(ToolError, match="outside"):
            run_local(context, LocalShellPayload(("pwd",), "/"))

    def test_more_permissions_need_a_justification(self, context: Context):
        with pytest.raises(ToolError, match="needs a justification"):
            run_local(context, LocalShellPayload(("true",), with_escalated_permissions=True, justification=" "))

    def test_justified_permissions_change_nothing(self, context: Context):
        payload = LocalShellPayload(("echo", "hi"), with_escalated_permissions=True, justification="May I say hi?")
        assert lines(run_local(context, payload))[-1] == "hi"

    def test_justified_permissions_do_not_lift_read_only_mode(self, context: Context):
        payload = LocalShellPayload(("touch", "made"), with_escalated_permissions=True, justification="Please")
        with pytest.raises(ToolError, match="read-only mode: "):
            run_local(msgspec.structs.replace(context, writable=False), payload)
        assert not (context.cwd / "made").exists()


class TestInATurn:
    """With the runtime that runs the calls of a turn."""

    def start(self, context: Context) -> TurnCalls:
        return TurnCalls(Registry([bash, local_shell]), CallHooks(lambda _: context))

    def in_turn(self, context: Context, work: Callable[[TurnCalls], None]) -> list[str]:
        async def turn() -> list[str]:
            runtime = self.start(context)
            work(runtime)
            await read_pids(context.cwd / "pid", 1)
            runtime.cancel()
            return [each.result.text for each in await runtime.results()]

        return asyncio.run(turn())

    def test_a_cancelled_turn_says_so_of_each_command(self, context: Context):
        def work(runtime: TurnCalls) -> None:
            runtime.start(function(bash, command="echo $$ > pid; sleep 1000"))
            runtime.start(ToolCall("local_shell", "call_2", LocalShellPayload(("sleep", "1000"))))

        texts = self.in_turn(context, work)
        stopped, waited = (re.sub(r"\d+\.\d", "N", text) for text in texts)
        assert stopped == "Wall time: N seconds\naborted by user"
        assert waited == "aborted by user before it started"

    def test_commands_run_one_after_the_other(self, context: Context):
        def work(runtime: TurnCalls) -> None:
            for number in range(2):
                line = "mkdir busy && sleep 0.05 && rmdir busy"
                payload = FunctionPayload(msgspec.json.encode({"command": line}).decode())
                runtime.start(ToolCall("Bash", f"call_{number}", payload))

        async def turn() -> list[bool]:
            runtime = self.start(context)
            work(runtime)
            return [each.result.failed for each in await runtime.results()]

        assert asyncio.run(turn()) == [False, False]
