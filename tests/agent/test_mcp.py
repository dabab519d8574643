"""MCP servers as tools, with a real server over both transports, of both eras of the protocol, on both event loops."""

import asyncio
import gc
import gzip
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx2
import msgspec
import pytest
import uvloop
from mcp_types import AudioContent, BlobResourceContents, CallToolResult, EmbeddedResource, TextContent

from tests.agent.clock import ClockLoop, skip
from tests.support import processes
from tests.support.gateway import PROXIES
from tests.support.processes import warm_command
from toolwire.agent.mcp import BadConfig, McpTool, Server, Servers, read_config, transports
from toolwire.agent.mcp.content import as_result
from toolwire.agent.mcp.servers import Names
from toolwire.core.request import AudioPart, FilePart, ImagePart, Part, TextPart
from toolwire.turns.tools.call import CustomPayload, FunctionPayload, ToolCall, ToolError
from toolwire.turns.tools.calls import CallHooks, TurnCalls
from toolwire.turns.tools.registry import Context, Registry, Result, tool

SERVER = Path(__file__).with_name("mcp_server.py")
LOOPS = {"asyncio": ClockLoop, "uvloop": uvloop.new_event_loop}


# How a test runs


class Said:
    """What was said about servers."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, name: str, message: str) -> None:
        self.lines.append((name, message))

    def about(self, name: str) -> str:
        return "\n".join(message for each, message in self.lines if each == name)


def run(main: Awaitable[Any], loop: str = "asyncio") -> Any:
    """Run to the end, and see that no task, process or complaint is left."""
    complaints: list[dict[str, Any]] = []
    before = children()

    async def watched() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return result

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        result = runner.run(watched())
    gc.collect()
    assert not complaints, complaints
    assert children() == before
    return result


def children() -> set[int]:
    """Our processes that still run."""
    found: set[int] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(stat.parent.name))
    return found - HttpServer.pids


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def until(holds: Callable[[], bool], skipping: float = 0) -> None:
    """Wait for an event; meanwhile the clock of the loop moves on in steps of `skipping` seconds."""
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
        if skipping:
            skip(skipping)


def context(emitted: list[str] | None = None, *, writable: bool = True) -> Context:
    return Context(Path.cwd(), emitted.append if emitted is not None else lambda _: None, writable=writable)


def stdio(name: str = "s", *args: str, **fields: Any) -> Server:
    program, *rest = warm_command(str(SERVER), *args)
    return Server(name=name, command=program, args=tuple(rest), **{"start_timeout": 120, **fields})


def stdio_process(name: str = "s", **fields: Any) -> Server:
    """A server whose process Toolwire itself has started, for what is done to that process."""
    return Server(name=name, command=sys.executable, args=(str(SERVER),), **{"start_timeout": 120, **fields})


def mute(name: str, mark: Path, **fields: Any) -> Server:
    """One that starts, makes the file `mark` and never answers, and does not go by itself either."""
    script = f"echo I say nothing >&2; touch {shlex.quote(str(mark))}; exec sleep 600"
    return Server(name=name, command="sh", args=("-c", script), **{"start_timeout": 600, **fields})


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not go by itself is ended soon."""
    for name in ("EXIT_TIMEOUT", "KILL_TIMEOUT"):
        monkeypatch.setattr(transports, name, 0.1)


def a_call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name, f"call_{name}", FunctionPayload(msgspec.json.encode(arguments).decode()))


async def ask(servers: Servers, name: str, /, **arguments: Any) -> Result:
    found = {each.name: each for each in servers.tools}
    return await found[name].run(a_call(name, **arguments), context())


class HttpServer:
    """The server over HTTP, in a process of its own."""

    pids: ClassVar[set[int]] = set()

    def __init__(self, *args: str) -> None:
        self._args = args
        self._port = "0"
        self.url = ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, str(SERVER), "--http", "--port", self._port, *self._args]
        self.process = processes.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.pids.add(self.process.pid)
        self.url = self.process.stdout.readline().strip()
        self.process.stdout.close()
        self._port = self.url.rpartition(":")[2].partition("/")[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def http_servers() -> Iterator[dict[str, HttpServer]]:
    servers = {"http": HttpServer(), "http-old": HttpServer("--legacy")}
    yield servers
    for server in servers.values():
        server.kill()


WAYS = ("stdio", "stdio-old", "stdio-new", "http", "http-old")
OPTIONS = {"stdio": (), "stdio-old": ("--legacy",), "stdio-new": ("--modern",)}


Reach = Callable[..., Server]


@pytest.fixture(params=WAYS)
def reach(request: pytest.FixtureRequest, http_servers: dict[str, HttpServer]) -> Reach:
    """Makes the settings for a server that is reached in one of the ways."""
    way: str = request.param

    def reached(**fields: Any) -> Server:
        if way in OPTIONS:
            return stdio("s", *OPTIONS[way], **fields)
        return Server(name="s", url=http_servers[way].url, **fields)

    return reached


both = pytest.mark.parametrize("reach", ["stdio", "http"], indirect=True)
"""For what is the same in both eras."""


# What comes back, in every way and on every loop


class Tour:
    """What one server answered."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self.emitted: list[str] = []
        self.said = Said()
        self.tools: tuple[McpTool, ...] = ()


CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("echo", {"text": "héllo 👋 \u2028"}),
    ("add", {"a": 2, "b": 3}),
    ("slow", {"seconds": 0.01}),
    ("fails", {}),
    ("refuses", {}),
    ("image", {}),
    ("big_image", {"bytes": 3_000_000}),
    ("audio", {}),
    ("resources", {}),
    ("structured", {"city": "Rome"}),
    ("broken", {}),
    ("liar", {}),
)


@pytest.fixture(scope="module", params=[(way, loop) for way in WAYS for loop in LOOPS], ids="-".join)
def tour(request: pytest.FixtureRequest, http_servers: dict[str, HttpServer]) -> Tour:
    way, loop = request.param
    server = stdio("s", *OPTIONS[way]) if way in OPTIONS else Server(name="s", url=http_servers[way].url)
    made = Tour()

    async def main() -> None:
        async with Servers([server], made.said) as servers:
            await servers.ready()
            made.tools = servers.tools
            for each in servers.tools:
                for name, arguments in CALLS:
                    if each.tool == name:
                        made.results[name] = await each.run(a_call(each.name, **arguments), context(made.emitted))

    run(main(), loop)
    return made


def test_text_comes_back_as_it_is(tour: Tour):
    assert tour.results["echo"] == Result((TextPart("héllo 👋 \u2028"),))


def test_structured_content_that_is_told_as_text_too_comes_once(tour: Tour):
    assert tour.results["add"] == Result((TextPart("5"),))
    assert len(tour.results["structured"].parts) == 1
    assert msgspec.json.decode(tour.results["structured"].text) == {"city": "Rome", "degrees": 18.5}


def test_a_tool_that_fails_gives_a_failed_result(tour: Tour):
    assert tour.results["fails"].failed
    assert "no such luck" in tour.results["fails"].text


def test_an_error_of_the_protocol_is_a_failed_result_and_not_the_end_of_the_server(tour: Tour):
    assert tour.results["refuses"] == Result((TextPart("the MCP server s has no result: not today"),), failed=True)
    assert not tour.said.lines


def test_a_result_that_is_none_fails_the_call_only(tour: Tour):
    assert tour.results["broken"].failed
    assert tour.results["broken"].text.startswith("the MCP server s has no result: its answer is not valid: ")
    assert tour.results["liar"].failed
    assert "Invalid structured content returned by tool liar" in tour.results["liar"].text


def test_an_image_is_an_image_part(tour: Tour):
    (part,) = tour.results["image"].parts
    assert isinstance(part, ImagePart)
    assert part.url.startswith("data:image/png;base64,iVBORw0KGgo")


def test_an_image_of_megabytes_arrives(tour: Tour):
    words, picture = tour.results["big_image"].parts
    assert words == TextPart("here it is")
    assert isinstance(picture, ImagePart)
    assert len(picture.url) > 4_000_000


def test_audio_is_an_audio_part(tour: Tour):
    assert tour.results["audio"].parts == (AudioPart("UklGRg==", "wav"),)


def test_resources_are_texts_files_and_images(tour: Tour):
    assert tour.results["resources"].parts == (
        TextPart("[resource notes://one]\n"),
        TextPart("first note"),
        TextPart("[resource file:///a/b.pdf]\n"),
        FilePart("data:application/pdf;base64,JVBERg==", name="b.pdf"),
        TextPart("[resource file:///a.png]\n"),
        ImagePart("data:image/png;base64,iVBORw=="),
        TextPart("[resource link file:///c.txt] c (text/plain, the third)"),
    )


def test_progress_is_emitted(tour: Tour):
    assert tour.emitted == ["it begins\n"]


def test_tools_have_the_name_of_their_server_and_their_schema(tour: Tour):
    echo = next(each for each in tour.tools if each.tool == "echo")
    assert (echo.name, echo.server, echo.description) == ("s__echo", "s", "Say it again.")
    assert msgspec.json.decode(echo.parameters or b"")["properties"]["text"]["type"] == "string"


def test_what_a_server_says_about_itself_is_not_believed(tour: Tour):
    assert all(each.writes for each in tour.tools)


def test_a_tool_writes_unless_a_trusted_server_says_that_it_does_not():
    async def main() -> list[str]:
        async with Servers([stdio(trusted=True)], Said()) as servers:
            await servers.ready()
            return [each.tool for each in servers.tools if not each.writes]

    assert asyncio.run(main()) == ["echo"]


# Calls


def overlap(results: list[Result]) -> bool:
    """Whether some of these calls were under way at the same time."""
    spans = sorted(msgspec.json.decode(f"[{','.join(part.text for part in each.parts)}]") for each in results)
    return any(end > begin for (_, end), (begin, _) in pairwise(spans))


@both
def test_calls_run_side_by_side(reach: Reach, tmp_path: Path):
    marks = [tmp_path / str(number) for number in range(8)]

    async def main() -> list[Result]:
        async with Servers([reach()], Said()) as servers:
            await servers.ready()
            calls = [asyncio.create_task(ask(servers, "s__slow", seconds=600, mark=str(mark))) for mark in marks]
            await until(lambda: all(mark.exists() for mark in marks))
            results = await asyncio.gather(*(ask(servers, "s__echo", text=str(n)) for n in range(20)))
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            return results

    assert [result.text for result in run(main())] == [str(number) for number in range(20)]


@pytest.mark.parametrize("parallel", [True, False])
def test_the_engine_runs_tools_side_by_side_where_the_server_allows_it(parallel: bool, tmp_path: Path):
    marks = [tmp_path / str(number) for number in range(3)]
    gate = tmp_path / "gate"

    async def main() -> list[Result]:
        async with Servers([stdio(parallel=parallel)], Said()) as servers:
            await servers.ready()
            registry = Registry()
            servers.update(registry)
            runtime = TurnCalls(registry, CallHooks(lambda _: context()))
            for mark in marks:
                runtime.start(a_call("s__slow", seconds=600, mark=str(mark), gate=str(gate)))
            await until(lambda: any(mark.exists() for mark in marks))
            if parallel:
                await until(lambda: all(mark.exists() for mark in marks))
            else:
                await ask(servers, "s__echo", text="after all that was sent")
                assert sum(mark.exists() for mark in marks) == 1
            gate.touch()
            return [each.result for each in await runtime.results()]

    assert overlap(run(main())) is parallel


def test_a_cancelled_call_is_cancelled_at_the_server(reach: Reach, tmp_path: Path):
    mark = tmp_path / "mark"

    async def main() -> None:
        async with Servers([reach()], Said()) as servers:
            await servers.ready()
            call = asyncio.create_task(ask(servers, "s__slow", seconds=600, mark=str(mark)))
            await until(mark.exists)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: mark.read_text() == "cancelled")
            assert (await ask(servers, "s__echo", text="still there")).text == "still there"

    run(main(), "uvloop")


def test_a_call_that_takes_too_long_fails_and_is_cancelled_at_the_server(reach: Reach, tmp_path: Path):
    mark = tmp_path / "mark"

    async def main() -> Result:
        async with Servers([reach(timeout=3000)], Said()) as servers:
            await servers.ready()
            call = asyncio.create_task(ask(servers, "s__slow", seconds=600, mark=str(mark)))
            await until(mark.exists)
            skip(3000)
            result = await call
            await until(lambda: mark.read_text() == "cancelled")
            return result

    words = "the MCP server s has no result: slow did not answer within 3000 seconds and was cancelled"
    assert run(main()) == Result((TextPart(words),), failed=True)


def test_arguments_that_are_no_object_are_the_models_mistake():
    async def main() -> None:
        async with Servers([stdio()], Said()) as servers:
            await servers.ready()
            echo = next(each for each in servers.tools if each.tool == "echo")
            for arguments, words in (
                ("{", "failed to parse function arguments"),
                ("[1]", "invalid arguments for s__echo"),
            ):
                with pytest.raises(ToolError, match=words):
                    await echo.run(ToolCall("s__echo", "1", FunctionPayload(arguments)), context())
            with pytest.raises(ToolError, match="takes arguments, not free text"):
                await echo.run(ToolCall("s__echo", "1", CustomPayload("hello")), context())
            half = await echo.run(ToolCall("s__echo", "1", FunctionPayload('{"text":"\\ud800"}')), context())
            assert half.parts == (TextPart("\ufffd"),)
            pid = next(each for each in servers.tools if each.tool == "pid")
            assert not (await pid.run(ToolCall("s__pid", "1", FunctionPayload("")), context())).failed

    run(main())


def test_in_read_only_mode_only_tools_run_that_read():
    async def main() -> None:
        async with Servers([stdio(trusted=True)], Said()) as servers:
            await servers.ready()
            tools = {each.tool: each for each in servers.tools}
            echoed = await tools["echo"].run(a_call("s__echo", text="hi"), context(writable=False))
            assert echoed.text == "hi"
            with pytest.raises(ToolError, match="read-only mode forbids"):
                await tools["add"].run(a_call("s__add", a=1, b=2), context(writable=False))

    run(main())


# Death


@pytest.mark.parametrize(("options", "loop"), [((), "asyncio"), (("--modern",), "uvloop")])
def test_a_server_that_dies_fails_the_call_and_is_back_at_the_next(
    options: tuple[str, ...], loop: str, capfd: pytest.CaptureFixture[str]
):
    said = Said()

    async def main() -> tuple[Result, Result]:
        async with Servers([stdio("s", *options)], said) as servers:
            await servers.ready()
            return await ask(servers, "s__dies"), await ask(servers, "s__echo", text="back")

    died, back = run(main(), loop)
    assert died.failed
    assert died.text == "the MCP server s is not running: it ended\nIt wrote:\nI am dying"
    assert back == Result((TextPart("back"),))
    assert said.about("s") == "is not running: it ended\nIt wrote:\nI am dying"
    assert capfd.readouterr() == ("", "")


def test_all_calls_under_way_fail_when_their_server_dies(tmp_path: Path):
    marks = [tmp_path / str(number) for number in range(5)]

    async def main() -> list[Result]:
        async with Servers([stdio()], Said()) as servers:
            await servers.ready()
            calls = [asyncio.create_task(ask(servers, "s__slow", seconds=600, mark=str(mark))) for mark in marks]
            await until(lambda: all(mark.exists() for mark in marks))
            await ask(servers, "s__dies")
            return await asyncio.gather(*calls)

    assert all("the MCP server s is not running" in each.text and each.failed for each in run(main()))


def test_a_server_that_died_while_nobody_asked_is_started_by_the_next_call():
    said = Said()

    async def main() -> tuple[str, str]:
        async with Servers([stdio()], said) as servers:
            await servers.ready()
            first = (await ask(servers, "s__pid")).text
            os.kill(int(first), signal.SIGKILL)
            await until(lambda: bool(said.lines))
            return first, (await ask(servers, "s__pid")).text

    first, second = run(main())
    assert first != second
    assert second.isdigit()


def test_a_server_that_dies_again_and_again_is_given_a_pause(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.agent.mcp.servers.time", SimpleNamespace(monotonic=lambda: 0.0))

    async def main() -> list[str]:
        async with Servers([stdio()], Said()) as servers:
            await servers.ready()
            return [(await ask(servers, "s__dies")).text for _ in range(3)]

    first, second, third = run(main())
    assert first == second
    assert "It can be started again in" in third


@pytest.mark.parametrize("options", [(), ("--legacy",)])
def test_an_http_server_that_goes_away_fails_the_call_and_is_back_at_the_next(options: tuple[str, ...]):
    server = HttpServer(*options)

    async def main() -> tuple[Result, Result]:
        async with Servers([Server(name="s", url=server.url)], Said()) as servers:
            await servers.ready()
            died = await ask(servers, "s__dies")
            await asyncio.to_thread(server.process.wait)
            await asyncio.to_thread(server.start)
            return died, await ask(servers, "s__echo", text="back")

    try:
        died, back = run(main())
    finally:
        server.kill()
    assert died.failed
    assert died.text.startswith("the MCP server s is not running: ")
    assert back == Result((TextPart("back"),))


def test_a_session_that_the_server_forgot_is_opened_again_without_a_word():
    server = HttpServer("--legacy")
    said = Said()

    async def main() -> list[Result]:
        async with Servers([Server(name="s", url=server.url)], said) as servers:
            await servers.ready()
            server.kill()
            await asyncio.to_thread(server.start)
            return await asyncio.gather(*(ask(servers, "s__echo", text=str(n)) for n in range(5)))

    try:
        results = run(main())
    finally:
        server.kill()
    assert [each.text for each in results] == list("01234")
    assert not said.lines


# Servers that do not start, or hang


def failed_start(*servers: Server) -> tuple[Said, tuple[str, ...]]:
    """What is said when some servers are to start, and which tools there are."""
    said = Said()

    async def main() -> tuple[str, ...]:
        async with Servers(servers, said) as running:
            await running.ready()
            return tuple(each.name for each in running.tools)

    return said, run(main())


NEVER: dict[str, tuple[Server, str]] = {
    "no such command": (
        Server(name="bad", command="no-such-command"),
        "is not running: there is no 'no-such-command'",
    ),
    "no such folder": (
        Server(name="bad", command=sys.executable, cwd="/no/such/folder"),
        "is not running: there is no '/no/such/folder'",
    ),
    "not executable": (
        Server(name="bad", command=str(SERVER)),
        "is not running: Permission denied",
    ),
    "ends at once": (
        Server(name="bad", command="sh", args=("-c", "printf 'no \\033[31mlicence\\033[0m' >&2; exit 3")),
        "is not running: it ended\nIt wrote:\nno licence",
    ),
    "lists without end": (
        stdio("bad", "--endless"),
        "is not running: its list has no end",
    ),
    "nobody there": (
        Server(name="bad", url="http://127.0.0.1:9/mcp"),
        "is not running: All connection attempts failed",
    ),
}


@pytest.mark.parametrize("case", NEVER)
def test_a_server_that_cannot_be_started_is_reported_and_the_others_run(case: str, capfd: pytest.CaptureFixture[str]):
    server, words = NEVER[case]
    said, tools = failed_start(server, stdio("good"))
    assert said.lines == [("bad", words)]
    assert "good__echo" in tools
    assert not any(name.startswith("bad") for name in tools)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("path", "words"), [("/mcp", "HTTP 401 Unauthorized"), ("/other", "HTTP 401 Unauthorized")])
def test_an_http_server_that_refuses_is_reported_with_its_status(path: str, words: str):
    server = HttpServer("--key", "right")
    try:
        url = server.url.replace("/mcp", path)
        said, tools = failed_start(
            Server(name="bad", url=url, headers={"Authorization": "Bearer wrong"}),
            Server(name="good", url=server.url, headers={"Authorization": "Bearer right"}),
        )
    finally:
        server.kill()
    assert words in said.about("bad")
    assert "wrong" not in said.about("bad")
    assert "good__echo" in tools


@pytest.mark.usefixtures("short_grace")
def test_a_server_that_says_nothing_is_reported_and_the_others_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    said = Said()
    mark = tmp_path / "mark"

    async def main() -> tuple[str, ...]:
        async with Servers([mute("bad", mark), stdio("good")], said) as servers:
            await until(lambda: mark.exists() and bool(servers.tools))
            assert not said.lines
            skip(600)
            await servers.ready()
            return tuple(each.name for each in servers.tools)

    tools = run(main())
    assert said.lines == [("bad", "is not running: it did not start within 600 seconds\nIt wrote:\nI say nothing")]
    assert "good__echo" in tools
    assert not any(name.startswith("bad") for name in tools)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("short_grace")
def test_all_servers_start_at_once(tmp_path: Path):
    said = Said()
    marks = [tmp_path / str(number) for number in range(10)]

    async def main() -> None:
        async with Servers([mute(mark.name, mark) for mark in marks], said) as servers:
            await until(lambda: all(mark.exists() for mark in marks))
            assert not said.lines, "none has settled"
            skip(600)
            await servers.ready()

    run(main())
    assert sorted(name for name, _ in said.lines) == [mark.name for mark in marks]


def test_calls_wait_together_for_a_server_that_is_starting():
    said = Said()

    async def main() -> list[Result]:
        async with Servers([stdio()], said) as servers:
            await servers.ready()
            await ask(servers, "s__dies")
            return await asyncio.gather(*(ask(servers, "s__pid") for _ in range(4)))

    results = run(main())
    assert len({each.text for each in results}) == 1
    assert results[0].text.isdigit()


def test_leaving_ends_the_wait_for_a_server_that_is_starting(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    program = f"[ -e {first} ] && touch {second} && exec sleep 600; touch {first}; exec {shlex.join(warm_command(str(SERVER)))}"

    async def main() -> Result:
        async with Servers(
            [Server(name="s", command="sh", args=("-c", program), start_timeout=120)], Said()
        ) as servers:
            await servers.ready()
            await ask(servers, "s__dies")
            call = asyncio.create_task(ask(servers, "s__pid"))
            await until(second.exists)
        return await call

    assert run(main()).text == "the MCP server s is not running: it was closed"


@pytest.mark.usefixtures("short_grace")
def test_a_server_that_stopped_for_good_does_not_keep_us():
    async def main() -> tuple[Result, int]:
        async with Servers([stdio_process("s", timeout=600)], Said()) as servers:
            await servers.ready()
            pid = int((await ask(servers, "s__pid")).text)
            os.kill(pid, signal.SIGSTOP)
            call = asyncio.create_task(ask(servers, "s__echo", text="hello?"))
            await until(call.done, skipping=600)
            return await call, pid

    result, pid = run(main())
    assert "echo did not answer within 600 seconds" in result.text
    assert not is_running(pid)


BABBLING = f"echo Welcome; echo; echo '{{}}'; echo Hello >&2; exec {sys.executable} {SERVER}"


def test_what_is_no_message_on_standard_output_is_said_once_and_passed_over():
    said = Said()

    async def main() -> Result:
        async with Servers([Server(name="s", command="sh", args=("-c", BABBLING), start_timeout=120)], said) as servers:
            await servers.ready()
            return await ask(servers, "s__echo", text="hi")

    assert run(main()).text == "hi"
    assert said.lines == [("s", "writes text that is not a message to its standard output")]


def test_nothing_that_a_server_or_the_package_writes_reaches_our_terminal():
    program = """if True:
        import asyncio, sys
        from toolwire.agent.mcp import Server, Servers

        async def main():
            babbling = Server(name="s", command="sh", args=("-c", sys.argv[1]), start_timeout=120)
            async with Servers([babbling], lambda name, message: None) as servers:
                await servers.ready()
                assert servers.tools

        asyncio.run(main())
    """
    done = processes.run([sys.executable, "-c", program, BABBLING], check=True, capture_output=True)
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("moment", ["at once", "in a while", "one runs", "one is open"])
def test_leaving_while_servers_start_leaves_nothing(moment: str, tmp_path: Path):
    mark = tmp_path / "mark"

    async def main() -> None:
        async with Servers([stdio("a"), mute("b", mark)], Said()) as servers:
            match moment:
                case "in a while":
                    for _ in range(20):
                        await asyncio.sleep(0)
                case "one runs":
                    await until(mark.exists)
                case "one is open":
                    await until(lambda: bool(servers.tools))
                case _:
                    pass

    run(main())


@pytest.mark.parametrize("reach", ["stdio", "http", "http-old"], indirect=True)
def test_leaving_ends_the_calls_under_way_at_the_server_too(reach: Reach, tmp_path: Path):
    mark = tmp_path / "mark"

    async def main() -> Result:
        async with Servers([reach()], Said()) as servers:
            await servers.ready()
            call = asyncio.create_task(ask(servers, "s__slow", seconds=600, mark=str(mark)))
            await until(mark.exists)
        await until(lambda: mark.read_text() == "cancelled")
        return await call

    assert run(main()) == Result((TextPart("the MCP server s is not running: it was closed"),), failed=True)


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("loop", LOOPS)
def test_a_task_that_is_cancelled_while_it_leaves_still_leaves_nothing(loop: str, tmp_path: Path):
    mark = tmp_path / "mark"
    pids: list[int] = []

    async def inside() -> None:
        async with Servers([stdio_process("a"), mute("b", mark)], Said()) as servers:
            await until(lambda: bool(servers.tools) and mark.exists())
            pids.append(int((await ask(servers, "a__pid")).text))
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(inside())
        await until(lambda: bool(pids))
        for _ in range(3):
            assert not task.done(), "a server is still to be ended"
            task.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main(), loop)
    assert not is_running(pids[0])


def test_after_leaving_a_call_says_so():
    async def main() -> Result:
        async with Servers([stdio()], Said()) as servers:
            await servers.ready()
        return await ask(servers, "s__echo", text="hi")

    assert run(main()).text == "the MCP server s is not running: it was closed"


# The tools that there are


def test_a_hundred_tools_come_page_by_page():
    async def main() -> tuple[tuple[McpTool, ...], Result]:
        async with Servers([stdio("s", "--many")], Said()) as servers:
            await servers.ready()
            return servers.tools, await ask(servers, "s__many_99")

    tools, result = run(main())
    assert [each.name for each in tools if "many_" in each.name] == [f"s__many_{number}" for number in range(100)]
    assert result.text == "99"


def test_a_tool_that_is_new_is_there_and_the_others_stay_what_they_were(reach: Reach):
    async def main() -> None:
        async with Servers([reach()], Said()) as servers:
            await servers.ready()
            registry = Registry()
            servers.update(registry)
            before = servers.tools
            name = f"new_{time.monotonic_ns()}"  # the HTTP servers live on
            await ask(servers, "s__grow", name=name)
            await until(lambda: any(each.tool == name for each in servers.tools))
            assert servers.tools[: len(before)] == before
            servers.update(registry)
            assert registry.get(f"s__{name}") is servers.tools[-1]
            assert (await ask(servers, f"s__{name}")).text == name

    run(main())


def test_a_subscription_that_ended_is_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.agent.mcp.connection.RESUBSCRIBE_DELAY", 60.0)

    async def main() -> None:
        async with Servers([stdio("s", "--modern", start_timeout=1e6)], Said()) as servers:
            await servers.ready()
            for name in ("unheard", "heard"):
                await ask(servers, "s__hush")
                await ask(servers, "s__grow", name=name)
                await until(lambda name=name: servers.tools[-1].tool == name, skipping=10)

    run(main())


def test_a_server_may_have_nothing():
    async def main() -> tuple[tuple[McpTool, ...], str]:
        async with Servers([stdio("s", "--bare")], Said()) as servers:
            await servers.ready()
            return servers.tools, servers.remotes[0].state

    assert run(main()) == ((), "connected")


def test_what_a_server_says_about_its_tools_is_told_to_the_model(reach: Reach):
    async def main() -> str:
        async with Servers([reach()], Said()) as servers:
            await servers.ready()
            registry = Registry()
            servers.update(registry)
            servers.update(registry)
            return registry.advice

    assert run(main()) == "About the tools of the MCP server s:\nEcho before you grow."


def test_a_tool_that_is_gone_leaves_the_registry():
    async def main() -> None:
        async with Servers([stdio()], Said()) as servers:
            await servers.ready()
            await ask(servers, "s__grow", name="fleeting")
            await until(lambda: servers.tools[-1].tool == "fleeting")
            registry = Registry()
            servers.update(registry)
            assert registry.get("s__fleeting") is not None
            await ask(servers, "s__dies")
            await ask(servers, "s__echo", text="a new process, which has not grown")
            servers.update(registry)
            assert registry.get("s__fleeting") is None
            assert registry.get("s__echo") is not None

    run(main())


def test_a_registry_keeps_its_own_tool_of_the_same_name():
    said = Said()

    @tool(name="s__echo")
    def own(text: str) -> str:
        return text

    async def main() -> None:
        async with Servers([stdio()], said) as servers:
            await servers.ready()
            registry = Registry([own])
            servers.update(registry)
            servers.update(registry)
            assert registry.get("s__echo") is own
            assert registry.get("s__add") is not None

    run(main())
    assert said.lines == [("s", "has a tool echo that is left out: another tool is named s__echo")]


def test_two_servers_may_have_tools_of_the_same_name():
    async def main() -> list[str]:
        servers_there = [stdio("one", env={"WHO": "first"}), stdio("two", env={"WHO": "second"})]
        async with Servers(servers_there, Said()) as servers:
            await servers.ready()
            registry = Registry()
            servers.update(registry)
            assert len(registry) == len(servers.tools)
            return [(await ask(servers, f"{name}__environment", name="WHO")).text for name in ("one", "two")]

    assert run(main()) == ["first", "second"]


def test_two_servers_of_the_same_name_are_a_mistake():
    with pytest.raises(ValueError, match="two MCP servers named 's'"):
        Servers([stdio(), stdio()], Said())


def test_only_tools_that_are_allowed_are_offered():
    said = Said()

    async def main() -> tuple[str, ...]:
        servers_there = [stdio("a", allow=("echo", "add", "nosuch"), deny=("add",)), stdio("b", allow=())]
        async with Servers(servers_there, said) as servers:
            await servers.ready()
            return tuple(each.name for each in servers.tools)

    assert run(main()) == ("a__echo",)
    assert said.lines == [("a", "has no tool named nosuch")]


NAMES: tuple[tuple[str, str], ...] = (
    ("a", "b__c"),
    ("a__b", "c"),
    ("a_", "_b"),
    ("a", "__b"),
    ("my server", "read.file"),
    ("my server", "read/file"),
    ("my_server", "read_file"),
    ("日本", "語"),
    ("本日", "語"),
    ("s", "x" * 80),
    ("s", "x" * 81),
)


def test_names_are_fit_for_models_and_never_twice_the_same():
    names = Names()
    given = [names.of(*each) for each in NAMES]
    assert len(set(given)) == len(NAMES)
    assert all(1 <= len(name) <= 64 and name.isascii() and name.replace("-", "_").isidentifier() for name in given)
    assert [names.of(*each) for each in reversed(NAMES)] == given[::-1]
    assert names.of("my_server", "read_file") == "my_server__read_file"


def test_a_server_with_an_odd_name_is_called_by_its_own():
    async def main() -> Result:
        async with Servers([stdio("my server/ü")], Said()) as servers:
            await servers.ready()
            echo = next(each for each in servers.tools if each.tool == "echo")
            assert (echo.server, echo.tool) == ("my server/ü", "echo")
            return await echo.run(a_call(echo.name, text="hi"), context())

    assert run(main()).text == "hi"


# A server's surroundings, and its resources


def test_a_server_gets_its_own_environment_and_folder_but_none_of_our_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    async def main() -> list[str]:
        async with Servers([stdio("s", env={"MINE": "yes"}, cwd=str(tmp_path))], Said()) as servers:
            await servers.ready()
            asked = [await ask(servers, "s__environment", name=name) for name in ("MINE", "OPENAI_API_KEY")]
            return [*(each.text for each in asked), (await ask(servers, "s__folder")).text]

    assert run(main()) == ["yes", "(not set)", str(tmp_path)]


@pytest.mark.parametrize(
    ("uri", "kind", "part"),
    [
        ("file:///a/b.pdf", "application/pdf", FilePart("data:application/pdf;base64,AA==", name="b.pdf")),
        ("data://[", "application/pdf", FilePart("data:application/pdf;base64,AA==", name="resource.pdf")),
        ("x://", None, FilePart("data:application/octet-stream;base64,AA==", name="resource.bin")),
        ("x://sound", "audio/mpeg", AudioPart("AA==", "mp3")),
    ],
)
def test_the_bytes_of_a_resource_are_what_their_type_says(uri: str, kind: str | None, part: Part):
    resource = BlobResourceContents(uri=uri, blob="AA==", mime_type=kind)
    block = EmbeddedResource(type="resource", resource=resource)
    assert as_result(CallToolResult(content=[block])).parts == (TextPart(f"[resource {uri}]\n"), part)


# What is structured


TOLD: dict[str, tuple[Any, list[str], tuple[str, ...]]] = {
    "nothing else": ({"a": 1}, [], ('{"a":1}',)),
    "the same as text": ({"a": 1}, ['{ "a": 1 }'], ('{ "a": 1 }',)),
    "other words": ({"a": 1}, ["one"], ("one", '{"a":1}')),
    "a number under result": ({"result": 5}, ["5"], ("5",)),
    "a text under result": ({"result": "five"}, ["five"], ("five",)),
    "a list under result": ({"result": ["a", "b"]}, ["a", "b"], ("a", "b")),
    "more than the result": ({"result": 5, "unit": "m"}, ["5"], ("5", '{"result":5,"unit":"m"}')),
    "a list of other things": ({"result": [1, 2]}, ["some"], ("some", '{"result":[1,2]}')),
    "another result": ({"result": 6}, ["5"], ("5", '{"result":6}')),
    "a list": ([1, 2], [], ("[1,2]",)),
    "the blocks once more": ({"result": [{"type": "text", "text": "a"}]}, ["a"], ("a",)),
    "no content at all": (None, [], ("",)),
}


@pytest.mark.parametrize("case", TOLD)
def test_structured_content_is_told_unless_a_text_tells_it(case: str):
    structured, texts, expected = TOLD[case]
    content: list[Any] = [TextContent(text=text) for text in texts]
    result = as_result(CallToolResult(content=content, structured_content=structured))
    assert result.parts == tuple(TextPart(text) for text in expected)


@pytest.mark.parametrize(
    ("kind", "format"), [("audio/mpeg", "mp3"), ("audio/x-wav", "wav"), ("audio/ogg; codecs=opus", "ogg")]
)
def test_audio_has_the_usual_name_of_its_format(kind: str, format: str):
    result = as_result(CallToolResult(content=[AudioContent(data="AA==", mime_type=kind)]))
    assert result.parts == (AudioPart("AA==", format),)


# Configuration


def config(**entry: Any) -> str:
    return msgspec.json.encode({"mcpServers": {"s": entry}}).decode()


def test_the_usual_form_is_read():
    text = """{"mcpServers": {
        "files": {"type": "stdio", "command": "npx", "args": ["-y", "files"], "env": {"A": "b"}, "cwd": "/srv"},
        "web": {"type": "http", "url": "https://example.com/mcp", "headers": {"X-Key": "k"}},
        "ours": {"command": "x", "timeout": 5, "startTimeout": 2.5, "parallel": true, "allow": ["a"], "deny": ["b"]}
    }, "theme": "dark"}"""
    assert read_config(text) == (
        Server(name="files", command="npx", args=("-y", "files"), env={"A": "b"}, cwd="/srv"),
        Server(name="web", url="https://example.com/mcp", headers={"X-Key": "k"}),
        Server(name="ours", command="x", timeout=5, start_timeout=2.5, parallel=True, allow=("a",), deny=("b",)),
    )


def test_a_disabled_server_is_left_out():
    assert read_config(config(command="x", disabled=True)) == ()
    assert len(read_config(config(command="x", disabled=False))) == 1


def test_variables_are_filled_in_everywhere():
    environment = {"HOME": "/home/me", "EMPTY": "", "KEY": "k$1"}
    (server,) = read_config(
        config(
            command="${HOME}/bin/x",
            args=["--root=${HOME}", "${NONE:-fallback}", "${EMPTY}", "${EMPTY:-instead}", "$HOME", "${NONE:-}"],
            env={"TOKEN": "${KEY}", "BOTH": "${HOME}:${KEY}"},
            cwd="${HOME}",
        ),
        environment,
    )
    assert server.command == "/home/me/bin/x"
    assert server.args == ("--root=/home/me", "fallback", "", "instead", "$HOME", "")
    assert server.env == {"TOKEN": "k$1", "BOTH": "/home/me:k$1"}
    assert server.cwd == "/home/me"
    (server,) = read_config(config(url="${URL:-http://x}/mcp", headers={"Authorization": "Bearer ${KEY}"}), environment)
    assert (server.url, server.headers) == ("http://x/mcp", {"Authorization": "Bearer k$1"})


BAD: dict[str, tuple[str, str]] = {
    "not JSON": ("{", "the configuration of MCP servers is not JSON: "),
    "no object": ("[]", "the configuration: Expected `object`, got `array`"),
    "no servers": ('{"servers": {}}', "mcpServers: is missing"),
    "servers are a list": ('{"mcpServers": []}', "mcpServers: Expected `object`, got `array`"),
    "a server is a text": ('{"mcpServers": {"s": "x"}}', "mcpServers.s: Expected `object`, got `str`"),
    "an empty name": ('{"mcpServers": {"": {"command": "x"}}}', "mcpServers: a server has an empty name"),
    "neither": (config(args=[]), "mcpServers.s: has neither a command nor a url"),
    "both": (config(command="x", url="http://x"), "mcpServers.s: has both a command and a url"),
    "command": (config(command=["x"]), "mcpServers.s.command: Expected `str`, got `array`"),
    "args": (config(command="x", args="-y"), "mcpServers.s.args: Expected `array`, got `str`"),
    "an arg": (config(command="x", args=["-y", 8080]), "mcpServers.s.args[1]: Expected `str`, got `int`"),
    "env": (config(command="x", env=["A=b"]), "mcpServers.s.env: Expected `object`, got `array`"),
    "a variable": (config(command="x", env={"PORT": 80}), "mcpServers.s.env.PORT: Expected `str`, got `int`"),
    "a header": (config(url="http://x", headers={"X": None}), "mcpServers.s.headers.X: Expected `str`, got `null`"),
    "url": (config(url="example.com/mcp"), "mcpServers.s.url: must begin with http:// or https://"),
    "timeout": (config(command="x", timeout="5"), "mcpServers.s.timeout: Expected `float`, got `str`"),
    "no time": (config(command="x", startTimeout=0), "mcpServers.s.startTimeout: Expected `float` > 0.0"),
    "parallel": (config(command="x", parallel="yes"), "mcpServers.s.parallel: Expected `bool`, got `str`"),
    "allow": (config(command="x", allow="a"), "mcpServers.s.allow: Expected `array`, got `str`"),
    "deny": (config(command="x", deny=[1]), "mcpServers.s.deny[0]: Expected `str`, got `int`"),
    "disabled": (config(command="x", disabled=1), "mcpServers.s.disabled: Expected `bool`, got `int`"),
    "type": (config(type="sse", url="http://x"), "mcpServers.s.type: must be 'stdio' or 'http'"),
    "another type": (config(type="http", command="x"), "mcpServers.s.url: is missing"),
    "not set": (
        config(command="x", env={"TOKEN": "a ${NO_SUCH_VARIABLE}"}),
        "mcpServers.s.env.TOKEN: the environment variable NO_SUCH_VARIABLE is not set",
    ),
    "not set in an arg": (
        config(command="x", args=["a", "${NO_SUCH_VARIABLE}"]),
        "mcpServers.s.args[1]: the environment variable NO_SUCH_VARIABLE is not set",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_configuration_is_refused_with_the_name_of_its_field(case: str):
    text, words = BAD[case]
    with pytest.raises(BadConfig) as caught:
        read_config(text, {})
    assert str(caught.value).startswith(words)


def test_settings_that_mean_nothing_here_are_said():
    said, tools = failed_start(
        *read_config(
            msgspec.json.encode(
                {
                    "mcpServers": {
                        "s": {"command": sys.executable, "args": [str(SERVER)], "autoApprove": [], "icon": "x"}
                    }
                }
            ).decode()
        )
    )
    assert said.lines == [("s", "has unknown settings: autoApprove, icon")]
    assert tools


@pytest.mark.parametrize(
    "fields", [{"name": "", "command": "x"}, {"name": "s"}, {"name": "s", "command": "x", "url": "http://x"}]
)
def test_a_server_needs_a_name_and_one_way_to_it(fields: dict[str, str]):
    with pytest.raises(BadConfig):
        Server(**fields)


def test_secrets_are_not_shown():
    server = Server(name="s", url="http://x?key=secret", headers={"Authorization": "secret"})
    assert repr(server) == "Server('s')"


# What it costs


def test_the_package_is_loaded_only_for_a_server():
    program = """if True:
        import asyncio, sys
        from toolwire.agent.mcp import Servers, read_config

        async def main():
            async with Servers(read_config('{"mcpServers": {}}'), print) as servers:
                await servers.ready()

        asyncio.run(main())
        assert not {"mcp", "mcp_types", "httpx2", "pydantic", "anyio"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_with_a_broken_package_a_server_is_not_running():
    program = """if True:
        import asyncio, sys
        from toolwire.agent.mcp import Server, Servers

        sys.modules["mcp_types"] = None

        async def main():
            async with Servers([Server(name="s", command="x")], print) as servers:
                await servers.ready()

        asyncio.run(main())
    """
    done = processes.run([sys.executable, "-c", program], fresh=True, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("s is not running: the package mcp cannot be loaded: ")
    assert done.stdout.endswith(f"; try {sys.executable} -m pip install 'mcp>=2.3,<3'\n")


# Bounds


@both
def test_a_result_that_is_too_large_fails_its_call_with_the_reason(reach: Reach, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transports, "MAX_MESSAGE_BYTES", 1_000_000)

    async def main() -> None:
        async with Servers([reach()], Said()) as servers:
            await servers.ready()
            large = await ask(servers, "s__big_image", bytes=3_000_000)
            assert large.failed
            assert any(words in large.text for words in (transports.TOO_LARGE, "1000000 bytes")), large.text
            after = await ask(servers, "s__echo", text="still here")
            assert after == Result((TextPart("still here"),))

    run(main())


def test_a_list_of_tools_that_is_too_large_is_reported_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transports, "MAX_MESSAGE_BYTES", 500)
    said = Said()

    async def main() -> None:
        async with Servers([stdio()], said) as servers:
            await servers.ready()
            assert servers.tools == ()

    run(main())
    assert transports.TOO_LARGE in said.about("s")


class Pieces(asyncio.StreamReader):
    """Bytes that a process writes."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__()
        self._pieces = iter(pieces)

    async def read(self, n: int = -1) -> bytes:
        return next(self._pieces, b"")


def test_a_long_line_is_given_once_and_whole():
    async def main() -> None:
        lines = transports.read_lines(Pieces(*[b"x" * 1000] * 1000, b"\nbe", b"gun\n", b"rest"))
        assert [line async for line in lines] == [b"x" * 1_000_000, b"begun"]

    run(main())


def test_a_line_that_is_too_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transports, "MAX_MESSAGE_BYTES", 1000)

    async def main() -> None:
        with pytest.raises(transports.MessageTooLarge):
            async for _ in transports.read_lines(Pieces(b"x" * 1000, b"x", b"\n")):
                pass

    run(main())


def test_processes_that_the_program_starts_through_the_package_are_left_alone():
    from anyio.streams.text import TextReceiveStream
    from mcp.client import stdio

    assert stdio.TextReceiveStream is TextReceiveStream


async def in_pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(size):
        yield b"x"


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_a_plain_answer_is_read_up_to_the_limit(is_packed: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transports, "MAX_MESSAGE_BYTES", 1000)
    failed: list[str] = []
    health = transports.Health(lambda: None, failed.append)
    headers = {"content-type": "application/json"} | ({"content-encoding": "gzip"} if is_packed else {})

    async def packed(size: int) -> AsyncIterator[bytes]:
        yield gzip.compress(b"x" * size)

    async def main() -> None:
        for size, is_read in ((1000, True), (1001, False)):
            body = packed if is_packed else in_pieces
            answer = partial(httpx2.Response, 200, headers=headers)
            transport = httpx2.MockTransport(lambda _, answer=answer, size=size, body=body: answer(content=body(size)))
            hooks = {"response": [health.check_response]}
            async with (
                httpx2.AsyncClient(transport=transport, event_hooks=hooks) as client,
                client.stream("POST", "http://x/") as response,
            ):
                if is_read:
                    assert await response.aread() == b"x" * size
                else:
                    with pytest.raises(httpx2.StreamError, match="more than"):
                        await response.aread()

    run(main())


def test_names_of_many_tools_cost_no_more_each_than_those_of_few():
    def seconds(size: int) -> float:
        names, server, began = Names(), f"server{next(numbers)}", time.process_time()
        for number in range(size):
            names.of(server, f"tool_{number}")
        return time.process_time() - began

    numbers = count()
    few, many = (min(seconds(size) for _ in range(3)) for size in (1_000, 20_000))
    assert many < 120 * few, "twenty times as many; if each looked at all others, four hundred times"


def test_a_credential_that_a_server_was_given_does_not_come_back():
    async def main() -> Result:
        given = {"API_TOKEN": "tok-12345678", "PLACE": "home-12345678"}
        async with Servers([stdio(env=given)], Said()) as servers:
            await servers.ready()
            environment = next(each for each in servers.tools if each.tool == "environment")
            ask = [FunctionPayload(f'{{"name":"{name}"}}') for name in given]
            token, place = [await environment.run(ToolCall("s__environment", "1", each), context()) for each in ask]
            assert place.text == "home-12345678"
            return token

    assert run(main()).text == "[removed]"
