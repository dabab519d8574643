"""Long runs of a `codex` backend on the real program: nothing grows, nothing is left, and no place is lost."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.clients.test_js_clients import FOLDER, needs_packages
from tests.conftest import needs
from tests.soak.test_soak import memory_of, open_files
from tests.support.frames import call_item, completed, created, rs, stream, text
from tests.support.gateway import Gateway
from tests.support.upstream import Asked, Pause, Reply, Upstream

pytestmark = pytest.mark.soak

PROGRAM = FOLDER / "node_modules/.bin/codex"
THREADS = 100
"""A worker is replaced after so many."""
AT_ONCE = 8
PATHS = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
ANSWER = "All is well."
TOOL = {"name": "look", "description": "Look.", "schema": {"type": "object", "properties": {"at": {"type": "string"}}}}


@pytest.fixture
def codex() -> str:
    needs("node", "npm")
    needs_packages()
    if not PROGRAM.exists():
        pytest.skip("needs the Codex CLI that `make clients` installs")
    return str(PROGRAM)


class Watch:
    """The workers of a gateway, looked at all the time."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._over = threading.Event()
        self.seen: set[int] = set()
        self.most_workers = 0
        self.most_memory = 0
        """Kilobytes of all workers together."""
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            workers = children(self._gateway.process.pid)
            self.seen.update(workers)
            self.most_workers = max(self.most_workers, len(workers))
            self.most_memory = max(self.most_memory, sum(map(memory, workers)))

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def children(pid: int) -> list[int]:
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except OSError:
        return []


def memory(pid: int) -> int:
    """Kilobytes that a process and what it started hold."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    own = next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
    return own + sum(map(memory, children(pid)))


class Model:
    """What the upstream says: the last word of the last user decides."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.met = 0
        """Those who are here to meet: they are answered when all are."""
        self._beats: dict[int, float] = {}

    def reply(self, asked: Asked) -> Reply:
        items = asked.body["input"]
        said = [item for item in items if item.get("role") == "user"][-1]["content"][0]["text"]
        if said == "call" and not any(item["type"] == "function_call_output" for item in items):
            number = next(self._numbers)
            item = call_item(f"call_{number}", "look", '{"at": "it"}', f"fc_{number}")
            done = rs("output_item.done", output_index=0, item=item)
            return Reply([stream(created(), done, completed([item]))])
        if said == "endless":
            return Reply(self._endless())  # type: ignore[arg-type]
        if said == "meet":
            self.met += 1
            return Reply(self._meeting())  # type: ignore[arg-type]
        return Reply([stream(created(), *words())])

    @property
    def endless(self) -> int:
        """Answers without an end that somebody still reads."""
        return sum(time.monotonic() - beat < 1 for beat in self._beats.values())

    def _endless(self) -> Iterator[Any]:
        number = next(self._numbers)
        yield stream(created(), added(), text("x" * 100))
        while True:
            self._beats[number] = time.monotonic()
            yield Pause(0.1)
            yield b": more\n\n"

    def _meeting(self) -> Iterator[Any]:
        yield created()
        while self.met % AT_ONCE:
            yield Pause(0.01)
        yield stream(*words())


def added() -> bytes:
    return rs("output_item.added", output_index=0, item=message([]))


def message(content: list[Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "id": "msg_1", "content": content}


def words() -> list[bytes]:
    whole = message([{"type": "output_text", "text": ANSWER, "annotations": []}])
    pieces = [text(piece) for piece in (ANSWER[:4], ANSWER[4:])]
    return [added(), *pieces, rs("output_item.done", output_index=0, item=whole), completed([whole])]


def config(url: str, program: str, **profile: float) -> str:
    fields = ", ".join(f"{key} = {value}" for key, value in profile.items())
    return (
        f'[[backends]]\nname = "codex"\nkind = "codex"\ncommand = ["{program}"]\nbase_url = "{url}"\n'
        f'models = ["mock"]\nprofile = {{ {fields} }}\n'
    )


def serve(folder: Path, settings: str) -> Gateway:
    """A gateway whose directory for temporary files is its own, and which has no login."""
    for name in ("tmp", "home"):
        (folder / name).mkdir()
    return Gateway(folder, settings, TMPDIR=str(folder / "tmp"), CODEX_HOME=str(folder / "home"))


def homes(folder: Path) -> list[Path]:
    return [*(folder / "tmp").glob("toolwire-codex-*")]


# What clients do


def body(dialect: str, word: str, *, streamed: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "mock", "stream": streamed}
    name, description, schema = TOOL.values()
    if dialect == "responses":
        tools = [{"type": "function", "name": name, "description": description, "parameters": schema}]
        return asked | {"input": [{"role": "user", "content": word}], "tools": tools, "store": False}
    asked["messages"] = [{"role": "user", "content": word}]
    if dialect == "messages":
        tools = [{"name": name, "description": description, "input_schema": schema}]
        return asked | {"max_tokens": 100, "tools": tools}
    function = {"name": name, "description": description, "parameters": schema}
    return asked | {"tools": [{"type": "function", "function": function}]}


class Client:
    """Turns in all dialects, chosen by chance, a few at a time."""

    def __init__(self, base_url: str, session: aiohttp.ClientSession, chance: random.Random) -> None:
        self._base_url = base_url
        self._session = session
        self._chance = chance

    async def answered(self, word: str = "hello") -> None:
        """A turn that is read to its end."""
        dialect = self._chance.choice((*PATHS,))
        streamed = self._chance.random() < 0.5
        status, said = await self._post(dialect, body(dialect, word, streamed=streamed))
        assert status == 200, said
        assert "".join(texts(dialect, said)) == ANSWER if streamed else ANSWER in said, said

    async def with_tools(self) -> None:
        """A turn with a round of tools in it."""
        asked = body("chat", "call", streamed=False)
        status, said = await self._post("chat", asked)
        assert status == 200, said
        answer = json.loads(said)["choices"][0]["message"]
        (call,) = answer["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "seen"}
        status, said = await self._post("chat", asked | {"messages": [*asked["messages"], answer, result]})
        assert status == 200, said
        assert ANSWER in said, said

    async def without_results(self) -> None:
        """A turn that ends in a call, of whose result nobody ever hears."""
        status, said = await self._post("chat", body("chat", "call", streamed=False))
        assert status == 200, said

    async def abandoned(self, word: str = "endless") -> None:
        """A turn that its client leaves at any moment."""
        dialect = self._chance.choice((*PATHS,))
        try:
            async with asyncio.timeout(self._chance.uniform(0, 0.2)):
                await self._post(dialect, body(dialect, word, streamed=self._chance.random() < 0.7))
        except TimeoutError:
            pass

    async def _post(self, dialect: str, asked: dict[str, Any]) -> tuple[int, str]:
        async with self._session.post(f"{self._base_url}/{PATHS[dialect]}", json=asked) as response:
            return response.status, await response.text()


def texts(dialect: str, said: str) -> Iterator[str]:
    """The pieces of text in a stream."""
    for line in said.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        if dialect == "chat":
            yield from (choice["delta"].get("content") or "" for choice in event["choices"])
        elif dialect == "responses":
            yield event["delta"] if event["type"] == "response.output_text.delta" else ""
        else:
            yield event.get("delta", {}).get("text", "")


async def some_turns(base_url: str, turns: int, seed: int) -> None:
    """Most are answered, a fifth with tools; the others are left to themselves."""
    chance = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as session:
        client = Client(base_url, session, chance)
        ways = (client.answered, client.with_tools, client.without_results, client.abandoned)

        async def one() -> None:
            async with limit:
                (way,) = chance.choices(ways, (60, 20, 5, 15))
                await way()

        await asyncio.gather(*(one() for _ in range(turns)))


async def many_abandoned(base_url: str, turns: int, seed: int) -> None:
    chance = random.Random(seed)
    limit = asyncio.Semaphore(2 * AT_ONCE)
    async with aiohttp.ClientSession() as session:
        client = Client(base_url, session, chance)

        async def one() -> None:
            async with limit:
                await client.abandoned(chance.choice(("endless", "endless", "call", "hello")))

        await asyncio.gather(*(one() for _ in range(turns)))


async def a_crowd(base_url: str) -> None:
    async with aiohttp.ClientSession() as session:
        client = Client(base_url, session, random.Random(3))
        await asyncio.gather(*(client.answered("meet") for _ in range(AT_ONCE)))


# What must hold


def settle(gateway: Gateway, model: Model) -> None:
    """Those who were left have time to end. No turn goes on that nobody reads."""
    gateway.wait_until(lambda: False, 4)
    gateway.wait_until(lambda: model.endless == 0)
    assert model.endless == 0


def test_thousands_of_turns_leave_nothing_behind(codex: str, upstream: Upstream, tmp_path: Path):
    model = Model()
    upstream.replies["mock"] = model.reply
    gateway = serve(tmp_path, config(upstream.url, codex, threads=THREADS))
    watch = Watch(gateway)
    try:
        asyncio.run(some_turns(gateway.base_url, 500, 0))
        settle(gateway, model)
        before, files = memory_of(gateway), open_files(gateway)
        for seed in range(1, 10):
            asyncio.run(some_turns(gateway.base_url, 500, seed))
            upstream.asked.clear()
        settle(gateway, model)
        print(f"\ngateway: {before} kB, then {memory_of(gateway)} kB; {files} files, then {open_files(gateway)}")
        print(f"workers: {watch.most_workers} at a time, {len(watch.seen)} in all, {watch.most_memory} kB at most")
        assert memory_of(gateway) < before + 20_000
        assert open_files(gateway) < files + 20
        assert len(watch.seen) > 4500 / THREADS / 2
        assert watch.most_workers <= 4
        assert watch.most_memory < 1_500_000
        assert len(homes(tmp_path)) <= 4
    finally:
        watch.stop()
        gateway.stop()
    assert not homes(tmp_path)
    assert not [pid for pid in watch.seen if memory(pid)]


def test_no_place_is_lost_to_turns_that_were_abandoned(codex: str, upstream: Upstream, tmp_path: Path):
    model = Model()
    upstream.replies["mock"] = model.reply
    gateway = serve(tmp_path, config(upstream.url, codex, turns=AT_ONCE, threads=1000))
    try:
        for seed in range(8):
            asyncio.run(many_abandoned(gateway.base_url, 250, seed))
            asyncio.run(a_crowd(gateway.base_url))
        assert model.met == 8 * AT_ONCE
        settle(gateway, model)
    finally:
        gateway.stop()
    assert not homes(tmp_path)
