r"""A scripted `codex app-server`, for what the real program cannot be made to do.

    python app_server.py [--log FILE] [--scripts FOLDER] [--version 0.166.0] [--manner mute] app-server [-c key=value]

It speaks as 0.166.0 does in the recordings. What a thread plays is chosen by the model's name: `FOLDER/MODEL.json`
holds takes, one for each thread in turn, the last for all others. Whatever it hears and says goes into the log, one
object a line, with the process and the time. `Workers` is the tests' side of it; the rest is the program.
"""

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Step = tuple[str, Json]

USAGE = {
    "totalTokens": 120,
    "inputTokens": 100,
    "cachedInputTokens": 40,
    "cacheWriteInputTokens": 0,
    "outputTokens": 20,
    "reasoningOutputTokens": 5,
}
"""Of every response."""

MODELS = 50
"""How many names scripts have."""

_LONGEST = 100_000
"""Letters of a line that the log keeps."""


# Scripts


def say(*pieces: str, id: str = "msg_1") -> list[Step]:
    """A message in these pieces. `{results}` and `{words}` stand for what the client brought."""
    return [("say", {"id": id, "pieces": pieces})]


def item(id: str, name: str = "look", arguments: str = "{}") -> list[Step]:
    """The model's own item for a call."""
    return [("item", {"id": id, "name": name, "arguments": arguments})]


def ask(id: str, name: str = "look", written: str = "{}", **instead: Any) -> list[Step]:
    """The request for a call's result, with other parameters instead; `$absent` leaves one out."""
    return [("ask", {"id": id, "name": name, "arguments": written, "instead": instead})]


def done() -> list[Step]:
    """The model's response is over."""
    return [("done", {})]


def results() -> list[Step]:
    """Wait for the results of all calls."""
    return [("results", {})]


def calls(*made: tuple[str, str, str], asked: tuple[int, ...] = ()) -> list[Step]:
    """Calls as id, name and arguments, asked for in this order, and the wait for their results."""
    items = [step for call in made for step in item(*call)]
    order = asked or range(len(made))
    return [*items, *(step for place in order for step in ask(*made[place])), *done(), *results()]


def tell(method: str, **params: Any) -> list[Step]:
    """A notification about the thread and its turn, or whatever these parameters say instead."""
    return [("tell", {"method": method, "params": params})]


def demand(method: str, *, threadless: bool = False, **params: Any) -> list[Step]:
    """A request to the client, whose answer nobody waits for."""
    return [("demand", {"method": method, "params": params, "threadless": threadless})]


def write(line: str) -> list[Step]:
    """A line as it stands, but for `$thread` and `$turn`."""
    return [("write", {"line": line})]


def sleep(seconds: float) -> list[Step]:
    return [("sleep", {"seconds": seconds})]


def hang() -> list[Step]:
    """Nothing more, until the turn is interrupted."""
    return sleep(600)


def die(words: str = "") -> list[Step]:
    """The process ends here."""
    return [("die", {"words": words})]


def end(status: str = "completed", error: Json | None = None) -> list[Step]:
    """How the turn ends, if not well."""
    return [("end", {"status": status, "error": error})]


def no_end() -> list[Step]:
    """The turn is over, and nobody says so."""
    return [("no_end", {})]


def deaf() -> list[Step]:
    """From here on an interruption stops nothing."""
    return [("deaf", {})]


class Take:
    """What one thread plays. `answers` says by method how a request is answered otherwise than usual.

    `never`, `twice`, `after` (seconds), `die`, `error` or `result`.
    """

    def __init__(self, *steps: list[Step], **answers: Json) -> None:
        self.script = {"steps": [step for each in steps for step in each], "answers": answers}


# The tests' side


class Workers:
    """The scripted workers of one backend: their scripts and their log."""

    def __init__(self, folder: Path, name: str = "codex") -> None:
        self.name = name
        self._folder = folder / name
        self._log = self._folder / "app-server.jsonl"
        self._made = 0
        self._since = 0
        self._folder.mkdir(parents=True)

    def command(self, *options: str) -> list[str]:
        """The command for `toolwire.toml`. Python leaves out what it need not load."""
        files = ("--log", str(self._log), "--scripts", str(self._folder))
        return [sys.executable, "-S", "-E", __file__, *files, *options]

    def backend(self, *options: str, profile: str = "", **fields: Any) -> str:
        """The `[[backends]]` table. The models that scripts are made for are known in advance."""
        models = [f"s{number}" for number in range(MODELS)]
        table: Json = {"command": self.command(*options), "models": models, "retries": 0, **fields}
        lines = "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
        return f'[[backends]]\nname = "{self.name}"\nkind = "codex"\n{lines}profile = {{ {profile} }}\n'

    def script(self, *takes: list[Step] | Take, model: str = "") -> str:
        """A model that plays these takes, thread by thread. In the end names are used again."""
        name = model or f"s{self._made % MODELS}"
        self._made += not model
        (self._folder / f"{name}.count").unlink(missing_ok=True)
        played = [take.script if isinstance(take, Take) else {"steps": take, "answers": {}} for take in takes]
        (self._folder / f"{name}.json").write_text(json.dumps(played))
        return f"{self.name}/{name}"

    def forget(self) -> None:
        """What was logged so far is of no interest any more."""
        self._since += len(self.rows())

    def rows(self) -> "Rows":
        return Rows(self.all_rows()[self._since :])

    def all_rows(self) -> "Rows":
        """Those of no interest too."""
        lines = self._log.read_bytes().splitlines() if self._log.exists() else []
        return Rows(row for line in lines if (row := _row(line)) is not None)

    def wait_for(self, holds: "Callable[[Rows], Any]", seconds: float = 60) -> "Rows":
        """The rows once this holds of them; fails if it never does."""
        end = time.monotonic() + seconds
        while True:
            rows = self.rows()
            if holds(rows):
                return rows
            assert time.monotonic() < end, rows.gist
            time.sleep(0.02)


def _row(line: bytes) -> Json | None:
    """The row of a line; None of one that was cut short, because its worker was killed while it wrote it."""
    try:
        return json.loads(line)
    except ValueError:
        return None


class Rows(list[Json]):
    """What workers heard and said."""

    def heard(self, method: str) -> list[Json]:
        """The parameters of these requests and notifications of the client."""
        return [
            row["line"].get("params") for row in self if row["kind"] == "in" and row["line"].get("method") == method
        ]

    def answered(self, id: Any) -> list[Json]:
        """The client's answers to a request of the worker."""
        return [row["line"] for row in self if row["kind"] == "in" and row["line"].get("id") == id and "method" not in row["line"]]  # fmt: skip

    def answers(self) -> list[Json]:
        return [row["line"] for row in self if row["kind"] == "in" and "method" not in row["line"]]

    def said(self, method: str) -> list[Json]:
        """What the workers told, or asked, by this name."""
        return [row["line"] for row in self if row["kind"] == "out" and row["line"].get("method") == method]

    def of(self, kind: str) -> "Rows":
        return Rows(row for row in self if row["kind"] == kind)

    def by(self, pid: int) -> "Rows":
        return Rows(row for row in self if row["pid"] == pid)

    def about(self, thread: str) -> "Rows":
        """What concerns a thread."""
        return Rows(row for row in self if thread in json.dumps(row))

    @property
    def pids(self) -> list[int]:
        """The processes, in the order of their first rows."""
        return list(dict.fromkeys(row["pid"] for row in self))

    @property
    def threads(self) -> list[str]:
        """The threads that were begun."""
        return [row["line"]["result"]["thread"]["id"] for row in self if row["kind"] == "out" and _begins(row["line"])]

    @property
    def injected(self) -> list[list[Json]]:
        """The histories that threads began with."""
        return [params["items"] for params in self.heard("thread/inject_items")]

    @property
    def gist(self) -> list[Any]:
        """The last of them, for a test that fails."""
        return [(row["pid"], row["kind"], str(row.get("line"))[:120]) for row in self[-25:]]


def _toml(value: Any) -> str:
    """As JSON, but for tables."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"


def _begins(line: Json) -> bool:
    result = line.get("result")
    return isinstance(result, dict) and isinstance(result.get("thread"), dict) and "cwd" in result


# The program


class Interrupted(Exception):
    """The turn is to stop."""


class Server:
    """The process: its pipe, its log and its threads."""

    def __init__(self, options: dict[str, str]) -> None:
        self._folder = options.get("--scripts", ".")
        self._version = options.get("--version", "0.166.0")
        self._manner = options.get("--manner", "")
        self._file = os.open(options.get("--log", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._requests = 0
        self._unheard: frozenset[str] = frozenset()
        self.threads: dict[str, Thread] = {}
        self.asked: dict[int, Turn] = {}

    # Its pipe

    def log(self, kind: str, **fields: Any) -> None:
        row = json.dumps({"pid": self._pid, "t": round(time.time(), 4), "kind": kind, **fields})
        os.write(self._file, f"\n{row}\n".encode())

    def write(self, line: Json | str) -> None:
        text = line if isinstance(line, str) else json.dumps(line)
        data = (text + "\n").encode()
        with self._lock:
            short = len(text) <= _LONGEST
            self.log("out", line=line if short and not isinstance(line, str) else {"size": len(text)})
            while data:
                data = data[os.write(1, data) :]

    def tell(self, method: str, params: Json) -> None:
        if method not in self._unheard:
            self.write({"method": method, "params": params, "emittedAtMs": int(time.time() * 1000)})

    def demand(self, method: str, params: Json, turn: "Turn | None" = None) -> int:
        with self._lock:
            id = self._requests
            self._requests += 1
            if turn is not None:
                self.asked[id] = turn
        self.write({"method": method, "id": id, "params": params})
        return id

    def run(self) -> None:
        for line in _lines():
            try:
                message = json.loads(line)
            except ValueError:
                continue
            self.log("in", line=message if len(line) <= _LONGEST else {"size": len(line)})
            if self._manner != "mute":
                self._hear(message)
        self.log("end")
        if self._manner == "stubborn":
            time.sleep(600)
        os._exit(0)

    def _hear(self, message: Json) -> None:
        id, method = message.get("id"), message.get("method")
        if method is None:
            turn = self.asked.get(id) if isinstance(id, int) else None
            if turn is not None:
                turn.answer(id, message)
        elif id is not None:
            served = self.SERVED.get(method)
            if served is None:
                self.refuse(id, f"Invalid request: unknown variant `{method}`, expected one of `initialize`")
            else:
                served(self, id, message.get("params") or {})

    def refuse(self, id: Any, message: str) -> None:
        self.write({"error": {"code": -32600, "message": message}, "id": id})

    # What it is asked

    def _initialize(self, id: Any, params: Json) -> None:
        name = params["clientInfo"]["name"]
        self._unheard = frozenset(params["capabilities"].get("optOutNotificationMethods", ()))
        agent = f"{name}/{self._version} (Debian 12.0.0; x86_64) dumb ({name}; 0)"
        home = os.environ.get("CODEX_HOME", "")
        self.write(
            {
                "id": id,
                "result": {"userAgent": agent, "codexHome": home, "platformFamily": "unix", "platformOs": "linux"},
            }
        )
        if self._manner == "brief":
            os._exit(4)
        self.tell("remoteControl/status/changed", {"status": "disabled", "serverName": "here", "environmentId": None})

    def _start_thread(self, id: Any, params: Json) -> None:
        thread = Thread(self, params, self._take(params["model"]))
        self.threads[thread.id] = thread
        thread.reply("thread/start", id, {"thread": thread.shown, "model": params["model"], "cwd": os.getcwd()})
        self.tell("thread/started", {"thread": thread.shown})

    def _take(self, model: str) -> Json:
        try:
            with open(f"{self._folder}/{model}.json") as file:
                takes = json.load(file)
        except FileNotFoundError:
            takes = [{"steps": say("Hello."), "answers": {}}]
        counter = os.open(f"{self._folder}/{model}.count", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(counter, b"x")
        number = os.lseek(counter, 0, os.SEEK_CUR) - 1
        os.close(counter)
        return takes[min(number, len(takes) - 1)]

    def _inject(self, id: Any, params: Json) -> None:
        thread = self._found(id, params)
        if thread is not None:
            for each in params["items"]:
                thread.raw({"id": f"msg_{uuid.uuid4()}", **each}, str(uuid.uuid4()))
            thread.reply("thread/inject_items", id, {})

    def _start_turn(self, id: Any, params: Json) -> None:
        thread = self._found(id, params)
        if thread is not None:
            thread.turn = turn = Turn(thread)
            thread.reply("turn/start", id, {"turn": turn.shown("inProgress")})
            turn.start()

    def _steer(self, id: Any, params: Json) -> None:
        thread = self._found(id, params)
        if thread is None:
            return
        turn = thread.turn
        if turn is None or turn.id != params["expectedTurnId"]:
            self.refuse(id, "no active turn to steer")
            return
        turn.words += [part["text"] for part in params["input"] if part["type"] == "text"]
        thread.reply("turn/steer", id, {"turnId": turn.id})

    def _interrupt(self, id: Any, params: Json) -> None:
        thread = self._found(id, params)
        if thread is None:
            return
        turn = thread.turn
        if turn is None or turn.id != params["turnId"]:
            self.refuse(id, "no active turn to interrupt")
        elif turn.is_deaf:
            thread.reply("turn/interrupt", id, {})
        else:
            turn.interrupt(id)

    def _read(self, id: Any, params: Json) -> None:
        thread = self._found(id, params)
        if thread is not None:
            thread.reply("thread/read", id, {"thread": thread.shown})

    def _unsubscribe(self, id: Any, params: Json) -> None:
        thread = self._found(id, params)
        if thread is not None:
            thread.reply("thread/unsubscribe", id, {"status": "unsubscribed"})

    def _found(self, id: Any, params: Json) -> "Thread | None":
        thread = self.threads.get(params["threadId"])
        if thread is None:
            self.refuse(id, f"thread not found: {params['threadId']}")
        return thread

    SERVED: "dict[str, Callable[[Server, Any, Json], None]]" = {  # noqa: RUF012
        "initialize": _initialize,
        "thread/start": _start_thread,
        "thread/inject_items": _inject,
        "thread/read": _read,
        "thread/unsubscribe": _unsubscribe,
        "turn/start": _start_turn,
        "turn/steer": _steer,
        "turn/interrupt": _interrupt,
    }


class Thread:
    """A conversation, and what it plays."""

    def __init__(self, server: Server, started: Json, take: Json) -> None:
        self.id = str(uuid.uuid4())
        self.server = server
        self.started = started
        self.steps: list[Step] = take["steps"]
        self.turn: Turn | None = None
        self.used = 0
        self._answers: dict[str, Json] = take["answers"]

    @property
    def shown(self) -> Json:
        status = "idle" if self.turn is None else "active"
        return {
            "id": self.id,
            "ephemeral": True,
            "model": self.started["model"],
            "status": {"type": status},
            "turns": [],
        }

    def reply(self, method: str, id: Any, result: Json) -> None:
        """Answer a request, in the way that the script wants it."""
        way = self._answers.get(method, {})
        if "die" in way:
            os._exit(1)
        if "never" in way:
            return
        answer: Json = {"id": id, "result": way.get("result", result)}
        if "error" in way:
            answer = {"error": way["error"], "id": id}
        if "after" in way:
            timer = threading.Timer(way["after"], self.server.write, (answer,))
            timer.daemon = True
            timer.start()
            return
        for _ in range(2 if "twice" in way else 1):
            self.server.write(answer)

    def raw(self, shown: Json, turn: str) -> None:
        if self.started.get("experimentalRawEvents"):
            passed = {**shown, "internal_chat_message_metadata_passthrough": {"turn_id": turn}}
            self.server.tell("rawResponseItem/completed", {"threadId": self.id, "turnId": turn, "item": passed})


class Turn(threading.Thread):
    """A turn being played."""

    def __init__(self, thread: Thread) -> None:
        super().__init__(daemon=True)
        self.id = str(uuid.uuid4())
        self.words: list[str] = []
        self.is_deaf = False
        self._thread = thread
        self._server = thread.server
        self._waiting: dict[int, Json] = {}  # requests for results, and the calls they are for
        self._given: dict[int, Json] = {}
        self._made: list[str] = []  # calls, in the model's order
        self._outputs: list[str] = []
        self._said: list[Json] = []
        self._open = False  # a response of the model's
        self._interruption: Any = None
        self._changed = threading.Condition()

    def shown(self, status: str, error: Json | None = None) -> Json:
        said = self._said[-1:] if status == "completed" else []
        return {"id": self.id, "items": said, "status": status, "error": error, "durationMs": None}

    # For the one who reads

    def answer(self, id: int, message: Json) -> None:
        with self._changed:
            self._given[id] = message
            self._changed.notify_all()

    def interrupt(self, id: Any) -> None:
        with self._changed:
            self._interruption = id
            self._changed.notify_all()

    # What is played

    def run(self) -> None:
        self.tell("thread/status/changed", status={"type": "active", "activeFlags": []})
        self.tell("turn/started", turn=self.shown("inProgress"))
        told = self._thread.started.get("developerInstructions")
        if told:
            self._raw({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": told}]})
        try:
            for name, given in self._thread.steps:
                self._wait(0)
                getattr(self, f"do_{name}")(**given)
            self.do_end("completed", None)
        except Interrupted:
            self._stop()
        except SystemExit:
            self._thread.turn = None
        except Exception as fault:  # noqa: BLE001 - a script that cannot be played must be seen
            self._server.log("fault", words=repr(fault))
            os._exit(9)

    def tell(self, method: str, **params: Any) -> None:
        self._server.tell(method, {"threadId": self._thread.id, "turnId": self.id, **params})

    def _raw(self, shown: Json) -> None:
        self._thread.raw({"id": f"msg_{uuid.uuid4()}", **shown}, self.id)

    def _wait(self, seconds: float, holds: Callable[[], bool] = lambda: False) -> None:
        """Wait, but not when the turn is interrupted."""
        with self._changed:
            self._changed.wait_for(lambda: holds() or self._is_interrupted, seconds)
            if self._is_interrupted:
                raise Interrupted

    @property
    def _is_interrupted(self) -> bool:
        return self._interruption is not None

    def do_say(self, id: str, pieces: list[str]) -> None:
        self._open = True
        given = {"{results}": " ".join(self._outputs), "{words}": " ".join(self.words)}
        said: list[str] = []
        for piece in pieces:
            for mark, instead in given.items():
                piece = piece.replace(mark, instead)  # noqa: PLW2901
            said.append(piece)
        message: Json = {"type": "agentMessage", "id": id, "text": "", "phase": None}
        self.tell("item/started", item=message)
        for piece in said:
            self.tell("item/agentMessage/delta", itemId=id, delta=piece)
        message = {**message, "text": "".join(said)}
        self._said.append(message)
        self.tell("item/completed", item=message)
        content = [{"type": "output_text", "text": message["text"], "annotations": []}]
        self._raw({"type": "message", "status": "completed", "id": id, "role": "assistant", "content": content})

    def do_item(self, id: str, name: str, arguments: str) -> None:
        self._open = True
        self._made.append(id)
        made = {"type": "function_call", "status": "completed", "id": f"fc_{id}", "name": name}
        self._raw({**made, "arguments": arguments, "call_id": id})

    def do_ask(self, id: str, name: str, arguments: str, instead: Json) -> None:
        call = {"namespace": None, "tool": name, "arguments": json.loads(arguments)}
        shown = {
            "type": "dynamicToolCall",
            "id": id,
            **call,
            "status": "inProgress",
            "contentItems": None,
            "success": None,
        }
        self.tell("item/started", item=shown)
        params = {"threadId": self._thread.id, "turnId": self.id, "callId": id, **call, **instead}
        params = {key: value for key, value in params.items() if value != "$absent"}
        number = self._server.demand("item/tool/call", params, self)
        self._waiting[number] = shown

    def do_done(self) -> None:
        self._open = False
        self._thread.used += 1
        if self._thread.started.get("experimentalRawEvents"):
            self.tell("rawResponse/completed", responseId=f"resp_{self._thread.used}", usage=USAGE, usageMetadata=None)

    def do_results(self) -> None:
        self._wait(600, lambda: self._waiting.keys() <= self._given.keys())
        for number, call in sorted(self._waiting.items(), key=self._place):
            result = self._given[number].get("result") or {"contentItems": [], "success": False}
            texts = [part.get("text", "") for part in result["contentItems"]]
            self._outputs += texts
            status = "completed" if result["success"] else "failed"
            self.tell("item/completed", item={**call, "status": status, **result})
            output = texts[0] if len(texts) == 1 else texts
            self._raw(
                {"type": "function_call_output", "id": f"fco_{uuid.uuid4()}", "call_id": call["id"], "output": output}
            )
        self._waiting = {}
        self._tell_usage()
        for words in self.words:
            self._raw({"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]})

    def _place(self, waiting: tuple[int, Json]) -> int:
        id = waiting[1]["id"]
        return self._made.index(id) if id in self._made else len(self._made)

    def do_tell(self, method: str, params: Json) -> None:
        self.tell(method, **self._filled(params))

    def do_demand(self, method: str, params: Json, *, threadless: bool) -> None:
        own = {} if threadless else {"threadId": self._thread.id, "turnId": self.id}
        self._server.demand(method, {**own, **params})

    def do_write(self, line: str) -> None:
        self._server.write(line.replace("$thread", self._thread.id).replace("$turn", self.id))

    def _filled(self, params: Json) -> Json:
        return json.loads(json.dumps(params).replace("$thread", self._thread.id).replace("$turn", self.id))

    def do_sleep(self, seconds: float) -> None:
        self._wait(seconds)

    def do_die(self, words: str) -> None:
        os.write(2, words.encode())
        os._exit(1)

    def do_deaf(self) -> None:
        self.is_deaf = True

    def do_no_end(self) -> None:
        self._thread.turn = None
        raise SystemExit

    def do_end(self, status: str, error: Json | None) -> None:
        if self._open:
            self.do_done()
        self._tell_usage()
        if error is not None:
            self.tell("error", error=error, willRetry=False)
        self._over(status, error)
        raise SystemExit

    def _tell_usage(self) -> None:
        total = {name: count * self._thread.used for name, count in USAGE.items()}
        self.tell("thread/tokenUsage/updated", tokenUsage={"total": total, "last": USAGE, "modelContextWindow": None})
        limits = {"limitId": "codex", "primary": None, "secondary": None, "credits": None}
        self._server.tell("account/rateLimits/updated", {"rateLimits": limits})

    def _stop(self) -> None:
        for number, call in self._waiting.items():
            if number not in self._given:
                self.tell("item/completed", item={**call, "status": "failed", "contentItems": [], "success": False})
        self._tell_usage()
        self._thread.reply("turn/interrupt", self._interruption, {})
        self._over("interrupted", None)

    def _over(self, status: str, error: Json | None) -> None:
        self._thread.turn = None
        self.tell("thread/status/changed", status={"type": "idle"})
        self._server.tell("turn/completed", {"threadId": self._thread.id, "turn": self.shown(status, error)})


def _lines() -> Iterator[bytes]:
    """What comes, line by line, until the pipe is closed."""
    pending = b""
    while data := os.read(0, 1 << 16):
        *whole, pending = (pending + data).split(b"\n")
        yield from whole


def _home() -> Json:
    """What the process finds in its home: the contents of files, and where links lead."""
    home = Path(os.environ.get("CODEX_HOME", "/nowhere"))
    found = sorted(home.iterdir()) if home.is_dir() else []
    return {each.name: str(each.readlink()) if each.is_symlink() else each.read_text() for each in found}


def main(arguments: list[str]) -> None:
    place = arguments.index("app-server")
    options = dict(zip(arguments[:place:2], arguments[1:place:2], strict=True))
    server = Server(options)
    server.log(
        "start", argv=arguments, home=os.environ.get("CODEX_HOME", ""), files=_home(), variables=sorted(os.environ)
    )
    if "--exit" in options:
        os.write(2, options["--exit"].encode())
        os._exit(3)
    server.run()


if __name__ == "__main__":
    main(sys.argv[1:])
