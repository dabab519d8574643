"""Measures a `codex` backend beside the least a Python client of `codex app-server` can do, interleaved, as ratios.

    run.py codex            →  HTTP client → gateway → worker → upstream
                            →       driver (direct) → worker → upstream

Both sides start the same program with the same configuration, take the same steps for a turn, and reach the same
scripted model. Each is a process of its own, and CPU time is that process's own. The gateway serves HTTP on top of what
the driver does, so the ratio says what a client pays for a dialect instead of the pipe. Each round has new processes.
"""

import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import msgspec
import uvloop

import fixtures
from toolwire.backends.codex.config import write_catalogue, write_configuration

HERE = Path(__file__).parent
INSTALLED = HERE.parent / "tests/clients/js/node_modules/.bin/codex"
UPSTREAM_PORT, GATEWAY_PORT = 9420, 9421
UPSTREAM = f"http://127.0.0.1:{UPSTREAM_PORT}/v1"
GATEWAY = f"http://127.0.0.1:{GATEWAY_PORT}"
MANY = 500
CROWD = 100

# kind of turn: deltas of its text, milliseconds between them, with a round of tools first
KINDS = {"text": (5, 0, False), "tool": (5, 0, True), "burst": (MANY, 0, False), "paced": (MANY, 2, False)}

# name: dialect, streamed, kind, turns in a batch
SCENARIOS = {
    "chat-plain": ("chat", False, "text", 20),
    "chat-stream": ("chat", True, "text", 20),
    "chat-plain-tool": ("chat", False, "tool", 15),
    "chat-stream-tool": ("chat", True, "tool", 15),
    "responses": ("responses", True, "text", 20),
    "responses-tool": ("responses", True, "tool", 15),
    "messages": ("messages", True, "text", 20),
    "messages-tool": ("messages", True, "tool", 15),
    "deltas-burst": ("chat", True, "burst", 10),
    "deltas-paced": ("chat", True, "paced", 3),
}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def text_of(kind: str) -> str:
    return "".join(f" word{number}" for number in range(KINDS[kind][0]))


class Batch(msgspec.Struct):
    """What came of some turns: the seconds that each took, and how many were as they should be."""

    walls: list[float]
    right: int
    seconds: float

    def __post_init__(self) -> None:
        if self.right != len(self.walls):
            sys.exit(f"only {self.right} of {len(self.walls)} turns were right")


async def batch(turn: Callable[[], Awaitable[bool]], turns: int, at_once: int) -> Batch:
    limit = asyncio.Semaphore(at_once)

    async def one() -> tuple[float, bool]:
        async with limit:
            began = time.perf_counter()
            right = await turn()
            return time.perf_counter() - began, right

    began = time.perf_counter()
    walls, right = zip(*await asyncio.gather(*(one() for _ in range(turns))), strict=True)
    return Batch(list(walls), sum(right), time.perf_counter() - began)


# The model


def sse(type: str, **fields: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **fields})}\n\n".encode()


def reply(item: dict[str, Any], deltas: list[str]) -> list[bytes]:
    """The events of a response with one item."""
    begun = {**item, "content": []} if deltas else {**item, "arguments": ""}
    usage = {"input_tokens": 300, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 60}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 360}
    place = {"output_index": 0, "item_id": item["id"], "content_index": 0}
    return [
        sse("response.created", response={"id": "resp_1", "status": "in_progress", "output": []}),
        sse("response.output_item.added", output_index=0, item=begun),
        *(sse("response.output_text.delta", **place, delta=delta) for delta in deltas),
        sse("response.output_item.done", output_index=0, item=item),
        sse("response.completed", response={"id": "resp_1", "status": "completed", "output": [item], "usage": usage}),
    ]


def words(kind: str) -> list[bytes]:
    deltas = [f" word{number}" for number in range(KINDS[kind][0])]
    content = [{"type": "output_text", "text": "".join(deltas), "annotations": []}]
    return reply({"type": "message", "role": "assistant", "id": "msg_1", "content": content}, deltas)


CALL = reply(
    {"type": "function_call", "id": "fc_N", "call_id": "call_N", "name": "read_file", "arguments": '{"path":"a"}'}, []
)


class Model(asyncio.Protocol):
    """A Responses server that knows the kinds of turns by the name of the model."""

    replies: ClassVar = {kind: (words(kind), pause, tool) for kind, (_, pause, tool) in KINDS.items()}
    numbers = count(1)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    def __init__(self) -> None:
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(body) >= length:
            self.buffer = body[length:]
            self.answer(body[:length])

    def answer(self, body: bytes) -> None:
        if not body:
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        kind = json.loads(body)["model"].removeprefix("mock-")
        events, pause, tool = self.replies[kind]
        self.transport.write(self.head)
        if tool and b'"function_call_output"' not in body:
            events = [event.replace(b"_N", b"_%d" % next(self.numbers)) for event in CALL]
        if pause:
            self.pace(iter(events), pause / 1000)
        else:
            self.transport.write(b"".join(map(chunk, events)) + b"0\r\n\r\n")

    def pace(self, events: Iterator[bytes], pause: float) -> None:
        event = next(events, None)
        self.transport.write(chunk(event or b""))
        if event is not None:
            asyncio.get_running_loop().call_later(pause, self.pace, events, pause)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve_model() -> None:
    await asyncio.get_running_loop().create_server(Model, "127.0.0.1", UPSTREAM_PORT, backlog=512)
    await asyncio.to_thread(sys.stdin.read)  # until nobody wants it any more


# The driver


class Params(msgspec.Struct, rename="camel"):
    thread_id: str = ""
    delta: str = ""


class Thread(msgspec.Struct):
    id: str = ""


class Result(msgspec.Struct):
    thread: Thread | None = None


class Line(msgspec.Struct):
    id: int | None = None
    method: str = ""
    params: Params | None = None
    result: Result | None = None


read_line = msgspec.json.Decoder(Line).decode
write_line = msgspec.json.Encoder().encode
RESULT = {"contentItems": [{"type": "inputText", "text": "print()"}], "success": True}
UNHEARD = ("thread/started", "thread/settings/updated", "thread/status/changed", "remoteControl/status/changed")
HELLO = {
    "clientInfo": {"name": "direct", "title": "Direct", "version": "0"},
    "capabilities": {"experimentalApi": True, "optOutNotificationMethods": UNHEARD},
}
TOOLS = [
    {"type": "function", "name": name, "description": "A tool of the mock.", "inputSchema": fixtures.TOOL_PARAMS}
    for name in ("read_file", "list_dir")
]
START = {
    "modelProvider": "toolwire",
    "ephemeral": True,
    "approvalPolicy": "never",
    "sandbox": "read-only",
    "environments": [],
    "experimentalRawEvents": True,
    "baseInstructions": fixtures.SYSTEM,
    "dynamicTools": TOOLS,
}
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": fixtures.USER}]}


class Driver(asyncio.SubprocessProtocol):
    """A worker, and nothing between it and the turns."""

    def __init__(self) -> None:
        self.rest = b""
        self.asked: dict[int, asyncio.Future[Result | None]] = {}
        self.turns: dict[str, tuple[list[str], asyncio.Future[None]]] = {}
        self.numbers = count(1)
        self.room = asyncio.Semaphore(32)  # app-server loses answers to a flood
        self.gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.stdin = transport.get_pipe_transport(0)

    def process_exited(self) -> None:
        self.gone.set_result(None)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if fd == 1:
            *lines, self.rest = (self.rest + data).split(b"\n")  # type: ignore[operator]
            for line in lines:
                self.hear(read_line(line))

    def hear(self, line: Line) -> None:
        if not line.method:
            if line.id in self.asked:
                self.asked.pop(line.id).set_result(line.result)
            return
        turn = self.turns.get(line.params.thread_id) if line.params is not None else None
        if turn is None:
            return
        if line.method == "item/agentMessage/delta":
            turn[0].append(line.params.delta)
        elif line.id is not None:
            self.stdin.write(write_line({"id": line.id, "result": RESULT}) + b"\n")
        elif line.method == "turn/completed":
            turn[1].set_result(None)

    def ask(self, method: str, params: Any) -> asyncio.Future[Result | None]:
        id = next(self.numbers)
        answer = self.asked[id] = asyncio.get_running_loop().create_future()
        self.stdin.write(write_line({"method": method, "id": id, "params": params}) + b"\n")
        return answer

    async def turn(self, kind: str) -> bool:
        texts, over = list[str](), asyncio.get_running_loop().create_future()
        async with self.room:
            started = await self.ask("thread/start", {"model": f"mock-{kind}", **START})
            assert started is not None
            assert started.thread is not None
            thread = started.thread.id
            self.turns[thread] = texts, over
            self.ask("thread/inject_items", {"threadId": thread, "items": [ITEM]})
            await self.ask("turn/start", {"threadId": thread, "input": [], "summary": "auto"})
        await over
        del self.turns[thread]
        self.ask("thread/unsubscribe", {"threadId": thread})
        return "".join(texts) == text_of(kind)


async def drive(command: str, home: str) -> None:
    """Do the turns that are asked for on stdin."""
    loop = asyncio.get_running_loop()
    environment = {**os.environ, "CODEX_HOME": home}
    _, driver = await loop.subprocess_exec(Driver, command, "app-server", cwd=home, env=environment)
    await driver.ask("initialize", HELLO)
    driver.stdin.write(b'{"method":"initialized"}\n')
    print("{}", flush=True)
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while asked := await stdin.readline():
        kind, turns, at_once = json.loads(asked)
        done = await batch(lambda kind=kind: driver.turn(kind), turns, at_once)
        print(json.dumps(msgspec.to_builtins(done)), flush=True)
    driver.stdin.close()
    await driver.gone


def furnish(home: Path) -> None:
    """What the gateway gives its workers too."""
    (home / "models.json").write_bytes(write_catalogue(f"mock-{kind}" for kind in KINDS))
    (home / "config.toml").write_text(write_configuration(str(home / "models.json"), 300, UPSTREAM))


# The client of the gateway


class Said(msgspec.Struct):
    """An answer: its text, and what goes back with the results of its calls."""

    text: str
    calls: list[str]
    history: list[Any]


def said_in_chat(message: dict[str, Any]) -> Said:
    calls = [call["id"] for call in message.get("tool_calls") or ()]
    results = [{"role": "tool", "tool_call_id": id, "content": "print()"} for id in calls]
    return Said(message.get("content") or "", calls, [message, *results])


def said_in_responses(response: dict[str, Any]) -> Said:
    output = response["output"]
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    text = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
    results = [{"type": "function_call_output", "call_id": id, "output": "print()"} for id in calls]
    return Said(text, calls, [*output, *results])


def said_in_messages(content: list[dict[str, Any]]) -> Said:
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    text = "".join(block["text"] for block in content if block["type"] == "text")
    results = [{"type": "tool_result", "tool_use_id": id, "content": "print()"} for id in calls]
    return Said(text, calls, [{"role": "assistant", "content": content}, {"role": "user", "content": results}])


def streamed_chat(events: list[dict[str, Any]]) -> Said:
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    for delta in (choice["delta"] for event in events for choice in event["choices"]):
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            if "id" in call:
                message["tool_calls"].append(call)
            else:
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    if not message["tool_calls"]:
        del message["tool_calls"]
    return said_in_chat(message)


def streamed_messages(events: list[dict[str, Any]]) -> Said:
    content: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            content.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            content[-1]["text"] = content[-1].get("text", "") + event["delta"].get("text", "")
            content[-1]["json"] += event["delta"].get("partial_json", "")
    for block in content:
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments or "{}")
            block.pop("text", None)
    return said_in_messages(content)


READ: dict[tuple[str, bool], Callable[[Any], Said]] = {
    ("chat", False): lambda body: said_in_chat(body["choices"][0]["message"]),
    ("chat", True): streamed_chat,
    ("responses", False): said_in_responses,
    ("responses", True): lambda events: said_in_responses(events[-1]["response"]),
    ("messages", False): lambda body: said_in_messages(body["content"]),
    ("messages", True): streamed_messages,
}


async def client_turn(session: aiohttp.ClientSession, dialect: str, streamed: bool, kind: str) -> bool:
    """A turn with all its rounds; whether it was as it should be."""
    body = fixtures.requests(f"mock-{kind}", streamed)[dialect]
    rounds = 0
    while True:
        async with session.post(GATEWAY + PATHS[dialect], data=json.dumps(body)) as response:
            raw = await response.read()
        if response.status != 200:
            sys.exit(f"the gateway answered {response.status}: {raw.decode()}")
        said = READ[dialect, streamed](events_of(raw) if streamed else json.loads(raw))
        if not said.calls:
            return said.text == text_of(kind) and rounds == KINDS[kind][2]
        rounds += 1
        field = "input" if dialect == "responses" else "messages"
        body = {**body, field: [*body[field], *said.history]}


def events_of(raw: bytes) -> list[Any]:
    lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


# Processes


class Program:
    """A process, with what it started."""

    def __init__(self, *command: str, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, text=True
            )

    def cpu(self) -> float:
        """Seconds of CPU so far: the process clock, which counts every thread."""
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def worker_cpu(self) -> float:
        """The same of its workers."""
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in self.workers())

    def workers(self) -> list[int]:
        return descendants(self._process.pid)

    def memory(self) -> str:
        """Megabytes of it and of its workers, and how many of them are anonymous."""
        own, workers = memory_of([self._process.pid]), memory_of(self.workers())
        return f"{own[0]:5.0f} ({own[1]:3.0f}) {workers[0]:8.0f} ({workers[1]:3.0f})"

    def ask(self, *what: Any) -> Any:
        """Send a line, if there is one to send, and read one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if what:
            print(json.dumps(what), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.communicate(timeout=40)


def descendants(pid: int) -> list[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in map(int, found) for each in (child, *descendants(child))]


def memory_of(pids: list[int]) -> tuple[float, float]:
    """Megabytes that are resident, and that are anonymous."""
    rows = [line.split() for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    sizes = [sum(int(row[1]) for row in rows if row[0] == name) / 1024 for name in ("VmRSS:", "RssAnon:")]
    return sizes[0], sizes[1]


# The measurement


class Cost(msgspec.Struct, frozen=True):
    """Of one turn, in milliseconds: CPU of the process, CPU of its worker, and the median of how long it takes."""

    own: float
    worker: float
    wall: float
    all: float
    """Seconds for all turns."""


class Pair(msgspec.Struct, frozen=True):
    direct: Cost
    gateway: Cost


class Round:
    """A gateway and a driver, with a worker each, and a client of the gateway."""

    def __init__(self, gateway: Program, driver: Program, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.driver = driver
        self.session = session

    async def pair(self, dialect: str, streamed: bool, kind: str, turns: int, at_once: int = 1) -> Pair:
        before = clocks(self.driver)
        done = msgspec.convert(await asyncio.to_thread(self.driver.ask, kind, turns, at_once), Batch)
        direct = cost(before, clocks(self.driver), done)
        before = clocks(self.gateway)
        done = await batch(lambda: client_turn(self.session, dialect, streamed, kind), turns, at_once)
        return Pair(direct, cost(before, clocks(self.gateway), done))


def clocks(program: Program) -> tuple[float, float]:
    return program.cpu(), program.worker_cpu()


def cost(before: tuple[float, float], after: tuple[float, float], done: Batch) -> Cost:
    own, worker = ((late - early) / len(done.walls) * 1e3 for early, late in zip(before, after, strict=True))
    return Cost(own, worker, statistics.median(done.walls) * 1e3, done.seconds)


async def measure(folder: Path, command: str, names: list[str], measured: dict[str, list[Pair]]) -> list[str]:
    """One round. Returns what was found of memory."""
    log = folder / "log"
    home = tempfile.mkdtemp(dir=folder)
    furnish(Path(home))
    toolwire = str(Path(sys.executable).parent / "toolwire")
    with ExitStack() as programs:

        def start(*command: str) -> Program:
            program = Program(*command, log=log)
            programs.callback(program.stop)
            return program

        start(sys.executable, __file__, "model")
        driver = start(sys.executable, __file__, "drive", command, home)
        gateway = start(toolwire, "serve", "--config", str(folder / "toolwire.toml"))
        driver.ask()
        async with aiohttp.ClientSession() as session:
            await answers(session, GATEWAY + "/healthz")
            round = Round(gateway, driver, session)
            for name in dict.fromkeys((*names, "chat-stream-tool")):
                await round.pair(*SCENARIOS[name][:3], 3)
            memory = [driver.memory(), gateway.memory()]
            for name in names:
                measured.setdefault(name, []).append(await round.pair(*SCENARIOS[name]))
            crowd = await round.pair("chat", True, "tool", CROWD, CROWD)
            measured.setdefault(f"{CROWD} at once", []).append(crowd)
            return [*memory, driver.memory(), gateway.memory()]


async def answers(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(600):
        with suppress(OSError, aiohttp.ClientError):
            async with session.get(url) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.05)
    sys.exit("the gateway did not start")


def report(measured: dict[str, list[Pair]]) -> None:
    print(f"{'':18}{'CPU of the process, ms':>27}{'of its worker, ms':>25}{'wall p50, ms':>27}")
    sides = f"{'direct':>9}{'gateway':>9}{'ratio':>7}"
    print(f"{'one turn':18}  {sides}{sides}  {sides}")
    for name, pairs in measured.items():
        print(f"{name:18}  {columns(pairs, 'own')}{columns(pairs, 'worker')}  {columns(pairs, 'wall')}")
    for name in ("deltas-burst", "deltas-paced"):
        if name in measured:
            print(f"{name}, us of CPU a delta: {columns(measured[name], 'own', 1000 / MANY)}")
    crowd = measured[f"{CROWD} at once"]
    print(f"{CROWD} at once, all right, seconds for all: {columns(crowd, 'all')}")


def columns(pairs: list[Pair], field: str, scale: float = 1.0) -> str:
    """The medians of both sides, and that of their ratio."""
    both = [(getattr(pair.direct, field) * scale, getattr(pair.gateway, field) * scale) for pair in pairs]
    ratio = statistics.median(own / direct for direct, own in both)
    return "".join(f"{statistics.median(side):9.2f}" for side in zip(*both, strict=True)) + f"{ratio:7.2f}"


def codex_command() -> str:
    found = str(INSTALLED) if INSTALLED.exists() else shutil.which("codex")
    return found or sys.exit("codex is missing: run `make clients`, or put it on the PATH")


def main(rounds: int, only: str) -> None:
    names = only.split(",") if only else list(SCENARIOS)
    command = codex_command()
    measured: dict[str, list[Pair]] = {}
    memory: list[str] = []
    with tempfile.TemporaryDirectory(prefix="toolwire-bench-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "toolwire.toml").write_text(
            f'[server]\nport = {GATEWAY_PORT}\n[store]\nurl = "memory:"\n'
            f'[[backends]]\nname = "codex"\nkind = "codex"\ncommand = ["{command}"]\nbase_url = "{UPSTREAM}"\n'
            f"models = {json.dumps([f'mock-{kind}' for kind in KINDS])}\nprofile = {{ threads = 1000000 }}\n"
        )
        try:
            for _ in range(rounds):
                memory = uvloop.run(measure(Path(folder), command, names, measured))
        except BaseException:
            print((Path(folder) / "log").read_text()[-4000:], file=sys.stderr)
            raise
    report(measured)
    turns = sum(SCENARIOS[name][3] for name in names) + CROWD
    print(f"\nMB resident (anonymous){'':6}{'process':>11}{'worker':>15}")
    rows = [f"{side}, {when}" for when in ("before", f"{turns} turns later") for side in ("direct", "gateway")]
    for name, size in zip(rows, memory, strict=True):
        print(f"{name:28}{size}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["model"]:
            uvloop.run(serve_model())
        case ["drive", command, home]:
            uvloop.run(drive(command, home))
        case _:
            sys.exit("usage: run.py codex")
