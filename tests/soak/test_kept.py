"""What was told as kept is kept: on a full disk, at the end of the process, and when the clock jumps."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.soak.attacked import STREAM, Attacked, Far, Steps, answering, attacked, begun, is_root, over, packed, words
from tests.soak.conftest import Rows

pytestmark = [pytest.mark.soak, pytest.mark.xdist_group("attacks")]

DISK = 4
"""Megabytes of the small disk."""
TEXT = "x" * 100_000


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    server = Far()
    server.answers["up"] = answering("responses")
    server.answers["chat"] = answering("chat")
    yield server
    server.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory in which little can be kept, and the environment that a gateway needs for that to be so."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False
    if is_root():
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(folder)]
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    yield folder, {} if mounted else {"SOAK_FILE_SIZE": str(DISK << 20)}
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Asker:
    """Asks for Responses."""

    def __init__(self, gateway: Attacked) -> None:
        self.url = f"{gateway.base_url}/responses"
        self.http = httpx.Client(timeout=30, trust_env=False)

    def turn(self, text: str, *, stream: bool, **fields: Any) -> tuple[int, dict[str, Any]]:
        """The status and the final response object."""
        answer = self.http.post(self.url, json={"model": "up/m", "input": text, "stream": stream, **fields})
        if not stream or answer.status_code != 200:
            return answer.status_code, answer.json()
        data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return 200, json.loads(data[-1])["response"]

    def is_there(self, id: str) -> bool:
        return self.http.get(f"{self.url}/{id}").status_code == 200

    def conversation(self) -> int:
        return self.http.post(self.url.replace("responses", "conversations"), json={}).status_code

    def readiness(self) -> str:
        return self.http.get(self.url.replace("v1/responses", "readyz")).text

    def chat(self) -> int:
        body = {"model": "chat/m", "messages": [{"role": "user", "content": "Go."}]}
        return self.http.post(self.url.replace("responses", "chat/completions"), json=body).status_code


def kept(response: dict[str, Any]) -> bool:
    return response.get("status") == "completed" and response.get("store", True) is not False


@pytest.mark.parametrize("way", ["full", "locked"])
def test_nothing_is_told_as_stored_that_is_not(rows: Rows, far: Far, tmp_path: Path, small_disk: Any, way: str):
    folder, environment = small_disk if way == "full" else (tmp_path, {})
    store = f'[store]\nurl = "sqlite:{folder}/store.db"\n'
    config = store + far.backend("up", "responses") + far.backend("chat", "chat")
    with attacked(tmp_path, config, **environment) as gateway:
        asker = Asker(gateway)
        status, first = asker.turn("first", stream=False)
        assert status == 200
        locker = None
        if way == "locked":
            import sqlite3

            locker = sqlite3.connect(folder / "store.db", isolation_level=None)
            locker.execute("BEGIN IMMEDIATE")
        count = 60 if way == "full" else 4
        said: list[tuple[int, dict[str, Any]]] = [asker.turn(TEXT, stream=number % 2 == 0) for number in range(count)]
        told = [response["id"] for status, response in said if status == 200 and kept(response)]
        status, again = asker.turn(TEXT, stream=False, previous_response_id=first["id"])
        background, _ = asker.turn(TEXT, stream=False, background=True)
        readiness, chat = asker.readiness(), asker.chat()
        if locker is not None:
            locker.rollback()
            locker.close()
        gone = [id for id in told if not asker.is_there(id)]
        name = f"store on a {way} {'disk' if way == 'full' else 'database'}"
        rows.add(f"{name}: told as stored and gone, of {count}", len(gone), 0, "")
        failed = [status for status, _ in said if status != 200]
        rows.add(f"{name}: turns that failed for it", len(failed), 0, "")
        rows.add(f"{name}: readable chain not continued", float(status != 200 or kept(again)), 0, "")
        rows.add(f"{name}: background accepted all the same ({background})", float(background != 503), 0, "")
        rows.add(f"{name}: /readyz silent", float("failing" not in readiness), 0, "")
        rows.add(f"{name}: chat turns refused", float(chat != 200), 0, "")
        rows.add(
            f"{name}: no log line",
            float(not any("store" in line for line in gateway.log if '"event":"turn"' not in line)),
            0,
            "",
        )
        if way == "locked":
            status, after = asker.turn("after", stream=False)
            rows.add(
                f"{name}: not stored though it is free again",
                float(not (kept(after) and asker.is_there(after["id"]))),
                0,
                "",
            )
        asker.http.close()
    rows.hold()


def test_a_store_file_that_vanishes(rows: Rows, far: Far, tmp_path: Path):
    store = f'[store]\nurl = "sqlite:{tmp_path}/store.db"\n'
    with attacked(tmp_path, store + far.backend("up", "responses")) as gateway:
        asker = Asker(gateway)
        asker.turn("first", stream=False)
        for path in tmp_path.glob("store.db*"):
            path.unlink()
        said = [asker.turn(TEXT, stream=False) for _ in range(4)]
        told = [response["id"] for _, response in said if kept(response)]
        asker.http.close()
        gateway.kill()
        with attacked(tmp_path, store + far.backend("up", "responses")) as again:
            asker = Asker(again)
            gone = [id for id in told if not asker.is_there(id)]
            asker.http.close()
        rows.add("store file deleted: told as stored and gone, of 4", len(gone), 0, "")
    rows.hold()


@pytest.mark.parametrize("days", [40, -400])
def test_a_clock_that_jumps(rows: Rows, far: Far, tmp_path: Path, days: int):
    """More than `store.max_age` of 30 days forward, or far back."""
    store = f'[store]\nurl = "sqlite:{tmp_path}/store.db"\n'
    with attacked(tmp_path, store + far.backend("up", "responses"), SOAK_JUMP=str(abs(days) * 86400)) as gateway:
        asker = Asker(gateway)
        before = [asker.turn("one", stream=False)[1]["id"] for _ in range(20)]
        gateway.process.send_signal(signal.SIGUSR1 if days > 0 else signal.SIGUSR2)
        after = [asker.turn("two", stream=False)[1]["id"] for _ in range(5)]
        gateway.process.send_signal(signal.SIGUSR2 if days > 0 else signal.SIGUSR1)
        after += [asker.turn("three", stream=False)[1]["id"] for _ in range(5)]
        gone = [id for id in (*before, *after) if not asker.is_there(id)]
        rows.add(f"clock jumps by {days} days and back: responses gone, of 30", len(gone), 0, "")
        asker.http.close()
    rows.hold()


def slowly(kind: str, seconds: float) -> Steps:
    async def answer(asked: bytes):  # type: ignore[no-untyped-def]
        import asyncio

        yield STREAM + begun(kind) + words(kind, "a")
        await asyncio.sleep(seconds)
        yield words(kind, "b") + over(kind, "ab")

    return answer


@pytest.mark.parametrize("which", ["SIGTERM", "SIGHUP"])
def test_turns_of_sockets_end_before_the_process(rows: Rows, far: Far, tmp_path: Path, which: str):
    far.answers["slow"] = slowly("responses", 3)
    ended: list[str] = []
    closed: list[int] = []

    def one(socket: ClientConnection, *, idle: bool) -> None:
        asked = {"type": "response.create", "model": "slow/m", "input": "Go.", "store": False}
        with suppress(OSError), socket:
            try:
                if not idle:
                    socket.send(json.dumps(asked))
                while True:
                    ended.append(json.loads(socket.recv(timeout=20))["type"])
            except ConnectionClosed as end:
                closed.append(end.rcvd.code if end.rcvd else 0)
            except TimeoutError:
                closed.append(-1)

    with attacked(tmp_path, far.backend("slow", "responses")) as gateway:
        url = gateway.url.replace("http", "ws") + "/v1/responses"
        sockets = [connect(url) for _ in range(12)]
        threads = [
            threading.Thread(target=one, args=(each,), kwargs={"idle": n >= 10}) for n, each in enumerate(sockets)
        ]
        for thread in threads:
            thread.start()
        plain: list[int] = []

        def by_post() -> None:
            with suppress(httpx.HTTPError):
                body = packed({"model": "slow/m", "input": "Go.", "store": False})
                plain.append(
                    httpx.post(gateway.url + "/v1/responses", content=body, timeout=20, trust_env=False).status_code
                )

        posting = threading.Thread(target=by_post)
        posting.start()
        time.sleep(1.5)
        gateway.process.send_signal(getattr(signal, which))
        for thread in (*threads, posting):
            thread.join(30)
        with suppress(subprocess.TimeoutExpired):
            gateway.process.wait(10)
        rows.add(f"{which}: socket turns cut, of 10", 10 - ended.count("response.completed"), 0, "")
        rows.add(f"{which}: sockets closed with another code than 1012, of 12", 12 - closed.count(1012), 0, "")
        rows.add(f"{which}: turns by POST cut, of 1", 1 - plain.count(200), 0, "")
        rows.add(
            f"{which}: exit code",
            abs(gateway.process.returncode if gateway.process.returncode is not None else 99),
            0,
            "",
        )
    rows.hold()


def test_an_unread_log_does_not_stop_the_gateway(rows: Rows, far: Far, tmp_path: Path):
    """A pipe that nobody reads holds 64 KB; lines beyond are dropped, not waited for."""
    config = tmp_path / "toolwire.toml"
    config.write_text('[store]\nurl = "memory:"\n' + far.backend("up", "responses"))
    read, write = os.pipe()
    process = subprocess.Popen(
        [*Attacked.program, "serve", "--config", str(config), "--port", "0"], stderr=write, cwd=tmp_path
    )
    os.close(write)
    try:
        line = b""
        while not line.endswith(b"\n") or b"ready on" not in line:
            line += os.read(read, 1)
        url = line.split()[-1].decode()
        answered = 0
        with httpx.Client(timeout=5, trust_env=False) as http, suppress(httpx.HTTPError):
            for _ in range(400):
                body = {"model": "up/m", "input": "Go.", "store": False}
                answered += http.post(f"{url}/v1/responses", json=body).status_code == 200
        rows.add("stderr that nobody reads: turns not answered, of 400", 400 - answered, 0, "")
    finally:
        process.kill()
        process.wait()
        os.close(read)
    rows.hold()
