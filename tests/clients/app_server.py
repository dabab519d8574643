"""A gateway whose backend is a real `codex app-server`, and behind that a scripted model, which alone is not real.

    model = stand.model(tells(Calls("c1", "look")), tells(Says("It is there.")))

A model gives its replies one after the other. Workers know the names of all models from the start, so none is replaced
for the sake of a name.
"""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.clients.codex import PROGRAM
from tests.support.backend_writers import reply
from tests.support.client_readers import PATHS
from tests.support.gateway import Gateway
from tests.support.routes import Routes
from tests.support.scripts import Item, Name, Script, Tokens
from tests.support.upstream import Asked, Reply, Upstream

Json = dict[str, Any]
Answer = Callable[[Asked], Reply]

MODELS = 320
"""How many models a gateway has to give away."""

STEM = "gpt-5.5-mock"
"""How the names of models begin. The Codex CLI, too, knows such a model."""

OWN = ("id", "status", "internal_chat_message_metadata_passthrough")
"""Members of items that app-server adds for its own use."""


class AppServer(Routes):
    """The running gateway, with the backends of `backends` or others; `{url}` is where the scripted model is."""

    def __init__(
        self,
        folder: Path,
        http: httpx.Client,
        config: str = "",
        login: Json | None = None,
        start: Callable[..., Gateway] = Gateway,
        **environment: str,
    ) -> None:
        self.folder = folder
        for name in ("home", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "home/auth.json").write_text(json.dumps(login or {"OPENAI_API_KEY": "sk-of-the-login"}))
        upstream = Upstream()
        tables = backends(upstream.url) if not config else config.replace("{url}", upstream.url)
        # Nobody's own login is used, and whoever is not on this machine cannot be reached.
        around = {
            "CODEX_HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            **NOWHERE,
            "MODEL_KEY": "sk-of-the-model",
        }
        super().__init__(start(folder, tables, **around, **environment), upstream, http)
        self._given = 0

    def stop(self) -> None:
        self.gateway.stop()
        self.upstream.stop()

    def model(self, *replies: Reply | Answer, backend: str = "codex") -> str:
        """A model of its own for one test: its replies, the last again and again. One may look at what was asked."""
        self._given += 1
        name, left = f"{STEM}-{self._given}", list(replies)

        def answer(asked: Asked) -> Reply:
            told = left.pop(0) if len(left) > 1 else left[0]
            return told if isinstance(told, Reply) else told(asked)

        self.upstream.replies[name] = answer
        return f"{backend}/{name}"

    def asked(self, model: str) -> list[Asked]:
        """What the model was asked, in order."""
        return self.upstream.of(model.partition("/")[2])

    def says(self, dialect: Name, body: Json) -> str:
        return self.ask(dialect, body).seen.text

    @contextmanager
    def stream(self, dialect: Name, body: Json) -> Iterator[Iterator[str]]:
        """The lines of an answer while it comes."""
        with httpx.Client(timeout=120, trust_env=False) as http:
            with http.stream("POST", self.gateway.url + PATHS[dialect], json=body) as response:
                yield response.iter_lines()

    def notes(self, model: str, turns: int = 1) -> list[Json]:
        """How often which note was made in each turn of a model, by the gateway's log, whose last line may be late."""

        def found() -> list[Json]:
            return [line["notes"] for line in self.gateway.turns() if line.get("model") == model]

        self.gateway.wait_until(lambda: len(found()) >= turns)
        return found()

    # Processes

    @property
    def homes(self) -> list[Path]:
        """The homes of the workers."""
        return sorted((self.folder / "tmp").glob("toolwire-codex-*"))

    def kill_worker(self, model: str) -> None:
        """End the worker that asked this model last, as a crash would, and wait until the gateway has noticed."""
        self.gateway.wait_until(lambda: bool(self.asked(model)))
        name = worker_of(self.asked(model)[-1])
        [home] = [file.parent for file in self.folder.glob("tmp/*/installation_id") if file.read_text().strip() == name]
        for pid in _processes_with(f"CODEX_HOME={home}"):
            os.kill(pid, signal.SIGKILL)
        self.gateway.wait_until(lambda: not home.exists())


NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}


def _processes_with(setting: str) -> list[int]:
    """The processes that have this in their environment."""
    ids = [path.name for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [int(id) for id in ids if setting.encode() in _environment_of(id).split(b"\0")]


def _environment_of(process: str) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""  # it is gone, or somebody else's


def table(name: str, **fields: Any) -> str:
    """A `[[backends]]` table of the kind `codex`."""
    models = ", ".join(f'"{STEM}-{number}"' for number in range(1, MODELS + 1))
    known = {"name": f'"{name}"', "kind": '"codex"', "command": f'["{PROGRAM}"]', "models": f"[{models}]"}
    lines = [f"{key} = {value}" for key, value in {**known, "retries": 0, **fields}.items()]
    return "\n".join(("[[backends]]", *lines, ""))


def backends(url: str) -> str:
    """`codex` asks once, `patient` once more if need be and with a key, and nobody listens where `nowhere` asks."""
    patient = table("patient", base_url=f'"{url}"', retries=1, api_key_env='"MODEL_KEY"')
    return (
        table("codex", base_url=f'"{url}"')
        + patient
        + table("nowhere", base_url=f'"http://127.0.0.1:{_free_port()}/v1"')
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def running(folder: Path, http: httpx.Client, config: str = "", **fields: Any) -> Iterator[AppServer]:
    stand = AppServer(folder, http, config, **fields)
    try:
        yield stand
    finally:
        stand.stop()


# What the model says

USUAL = Tokens(20, 5, 8, 0, 2)


def tells(*items: Item, tokens: Tokens = USUAL, **headers: str) -> Reply:
    """A turn that ends well."""
    told = reply(Script(items, tokens=tokens, chars=200), "responses", stream=True)
    return Reply(told.steps, headers={name.replace("_", "-"): value for name, value in headers.items()})


# What the model is shown


def history(asked: Asked) -> list[Json]:
    """The input of a request, without what app-server notes in it for itself."""
    return [_plain(item) for item in asked.body["input"]]


def _plain(item: Json) -> Json:
    kept = {name: value for name, value in item.items() if name not in OWN and value is not None}
    if item.get("role") == "assistant":  # what it said itself, it said with more words
        kept["content"] = [{"type": part["type"], "text": part["text"]} for part in kept["content"]]
    return kept


def message(role: str, *texts: str) -> Json:
    """A message as the model is shown it."""
    type = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": type, "text": text} for text in texts]}


def called(id: str, name: str, arguments: str) -> Json:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}


def result(id: str, output: Any) -> Json:
    return {"type": "function_call_output", "call_id": id, "output": output}


def thread_of(asked: Asked) -> str:
    """Which of app-server's threads asked."""
    return asked.body["prompt_cache_key"]


def worker_of(asked: Asked) -> str:
    """Which worker asked, by the name that is in its home."""
    return asked.body["client_metadata"]["x-codex-installation-id"]
