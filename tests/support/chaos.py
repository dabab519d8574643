"""Clients of several gateways to which bad things happen, and what must be true afterwards.

What a client was told is there, once, and the same from every gateway; whatever it saw of a stream is the beginning of
what is kept. How long anything takes, and how much of it is lost on the way, proves nothing and is not looked at.
"""

import itertools
import json
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Responses, calls_of, flat, response_body, text_of, tool
from tests.support.gateways import OVER, PATIENCE, Gateways, frames, over, send, until
from tests.support.upstream import Asked, Pause, Reply, Upstream

LEASE = 3.0
WORDS = 12
FIND = [flat(tool("find", q={"type": "string"}))]
CUT = (httpx.TransportError, AssertionError, json.JSONDecodeError)
"""What a client sees of a gateway that is killed, stopped or started anew."""

SHED = '''
from pathlib import Path

def note(token: str) -> str:
    """Note that it was run."""
    with Path("noted").open("a") as file:
        file.write(token + "\\n")
    return "noted"
'''


def answer(token: str) -> str:
    """What the model says to a prompt with this token."""
    return "".join(f"{token}-{number} " for number in range(WORDS))


def reply(asked: Asked) -> Reply:
    """Words, a few at a time; for some prompts a call first."""
    said = json.dumps(asked.body["input"])
    token = said.rpartition("token ")[2].partition(".")[0]
    if "please note" in said and '"call_output"' not in said and "function_call_output" not in said:
        return Reply([stream(created(), call("n1", "note", json.dumps({"token": token})), completed())])
    if "please find" in said and "function_call_output" not in said:
        return Reply([stream(created(), call("c1", "find", '{"q":"x"}'), completed())])
    words: list[Any] = [created()]
    for word in answer(token).split():
        words += [text(f"{word} "), Pause(0.03)]
    return Reply([*words, completed()])


class Ledger:
    """What clients were told."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, str] = {}
        """Tokens of background runs."""
        self.seen: dict[str, list[bytes]] = {}
        """What followers saw of them."""
        self.answers: defaultdict[str, set[str]] = defaultdict(set)
        """What submissions for a response led to."""
        self.talks: list[str] = []
        self.noted: dict[str, str] = {}
        """Runs with a tool, by token."""
        self.done: Counter[str] = Counter()
        self.cuts: list[str] = []
        """Why turns were cut off."""
        self.faults: list[str] = []


class Client(threading.Thread):
    """Asks in one way after the other, now here and now there."""

    def __init__(self, chaos: "Chaos", number: int) -> None:
        super().__init__(daemon=True)
        self._chaos = chaos
        self._ledger = chaos.ledger
        self._random = random.Random(f"{chaos.seed} {number}")
        self._tokens = (f"t{number}x{count}" for count in itertools.count())
        self._latest = ""
        self.timeout = 10.0

    def run(self) -> None:
        while self._chaos.takes_turn():
            self.turn(self._random.choice(list(KINDS)))

    def turn(self, kind: str) -> bool:
        """One turn; whether the client got what it asked for."""
        token = next(self._tokens)
        try:
            with httpx.Client(trust_env=False, timeout=self.timeout) as http:
                KINDS[kind](self, http, token)
        except CUT as error:
            self._ledger.cuts.append(f"{kind} {token}: {error!r}")
            return False
        except Exception as error:  # noqa: BLE001 - shown at the end
            self._ledger.faults.append(f"{kind} {token}: {error!r}")
            return False
        self._ledger.done[kind] += 1
        return True

    def _api(self, http: httpx.Client) -> Responses:
        gateway = self._random.choice(self._chaos.gateways.gateways)
        return Responses(http, gateway)

    def _keep(self, response: dict[str, Any], token: str) -> None:
        assert response["status"] == "completed"
        self._fault(text_of(response) == answer(token), f"{response['id']} says {text_of(response)!r}")
        if response["store"]:
            self._ledger.kept[response["id"]] = response

    def _fault(self, holds: bool, what: str) -> None:
        if not holds:
            self._ledger.faults.append(what)

    def plain(self, http: httpx.Client, token: str) -> None:
        response = self._api(http).create("up/chaos", f"token {token}.", store=False)
        self._fault(text_of(response) == answer(token), f"plain {token}")

    def streamed(self, http: httpx.Client, token: str) -> None:
        self._keep(self._api(http).stream("up/chaos", f"token {token}.").response, token)

    def chained(self, http: httpx.Client, token: str) -> None:
        continued = {"previous_response_id": self._latest} if self._latest else {}
        response = self._api(http).create("up/chaos", f"token {token}.", **continued)
        self._keep(response, token)
        self._latest = response["id"] if response["store"] else self._latest

    def background(self, http: httpx.Client, token: str, prompt: str = "", **fields: Any) -> None:
        queued = self._api(http).create("up/chaos", f"{prompt}token {token}.", background=True, **fields)
        self._ledger.runs[queued["id"]] = token
        self._ledger.seen[queued["id"]] = got = []
        end = time.monotonic() + PATIENCE
        while not got or not _is_last(got[-1]):
            assert time.monotonic() < end
            try:
                got += frames(self._api(http), queued["id"], len(got) - 1, self._random.choice((1, 2, 5)))
            except CUT:
                self._chaos.pause(0.05)

    def tools(self, http: httpx.Client, token: str) -> None:
        self._ledger.noted[token] = token
        self.background(http, token, "please note ")

    def submitted(self, http: httpx.Client, token: str) -> None:
        first = self._api(http).create("up/chaos", f"please find token {token}.", tools=FIND)
        if not first["store"] or not calls_of(first):
            return
        answers = [self._submit(first["id"], token) for _ in range(2)]
        threads = [threading.Thread(target=each, daemon=True) for each in answers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)

    def _submit(self, first: str, token: str) -> Callable[[], None]:
        gateway = self._random.choice(self._chaos.gateways.gateways)

        def submit() -> None:
            try:
                with httpx.Client(trust_env=False, timeout=self.timeout) as http:
                    answered = Responses(http, gateway).submit(first, {"c1": "found"})
                    if answered.status_code == 200 and answered.json()["store"]:
                        self._ledger.answers[first].add(answered.json()["id"])
                        self._keep(answered.json(), token)
            except CUT:
                pass

        return submit

    def talks(self, http: httpx.Client, token: str) -> None:
        conversation = self._chaos.conversation(self._api(http))
        answered = self._api(http).post(response_body("up/chaos", f"token {token}.", conversation=conversation))
        assert answered.status_code == 200, answered.text
        self._keep(answered.json(), token)

    def talks_in_background(self, http: httpx.Client, token: str) -> None:
        self.background(http, token, conversation=self._chaos.conversation(self._api(http)))


KINDS: dict[str, Callable[[Client, httpx.Client, str], None]] = {
    "plain": Client.plain,
    "streamed": Client.streamed,
    "chained": Client.chained,
    "background": Client.background,
    "tools": Client.tools,
    "submitted": Client.submitted,
    "talks": Client.talks,
    "talks in background": Client.talks_in_background,
}


def _is_last(frame: bytes) -> bool:
    return frame.startswith((b"event: response.completed", b"event: response.failed", b"event: response.incomplete"))


class Chaos:
    """Clients that take so many turns together, while gateways are killed and stopped."""

    def __init__(self, gateways: Gateways, upstream: Upstream, folder: Path, turns: int, seed: object) -> None:
        self.gateways = gateways
        self.seed = seed
        self.ledger = Ledger()
        self._folder = folder
        self._turns = turns
        self._random = random.Random(f"{seed} chaos")
        self._lock = threading.Lock()
        self._talk = ""
        self._talked = 0
        upstream.replies["chaos"] = reply

    @staticmethod
    def pause(seconds: float) -> None:
        threading.Event().wait(seconds)

    def takes_turn(self) -> bool:
        with self._lock:
            self._turns -= 1
            return self._turns >= 0

    def conversation(self, api: Responses) -> str:
        """One that all clients use for a while."""
        with self._lock:
            if not self._talk or self._talked == 12:
                self._talk, self._talked = "", 0
                answered = api.http.post(api.url.replace("/responses", "/conversations"), json={})
                assert answered.status_code == 200
                self._talk = answered.json()["id"]
                self.ledger.talks.append(self._talk)
            self._talked += 1
            return self._talk

    def run(self, clients: int) -> None:
        """Let it happen, until all turns are taken and all gateways are there."""
        asking = [Client(self, number) for number in range(clients)]
        for client in asking:
            client.start()
        while any(client.is_alive() for client in asking):
            self._strike()
            self.pause(self._random.uniform(0.2, 1.5))
        last = Client(self, clients)
        last.timeout = PATIENCE
        for kind in KINDS:
            until(lambda kind=kind: last.turn(kind), f"{kind} works no more: {self.ledger.faults}")

    def _strike(self) -> None:
        """Kill a gateway, or one of its workers, or stop one for a while that may be longer than its lease."""
        number = self._random.randrange(len(self.gateways.gateways))
        workers = self.gateways.workers(number) or [self.gateways.gateways[number].process.pid]
        victim = self._random.choice(workers)
        what = self._random.choice(("gateway", "worker", "stop", "stop"))
        if what == "stop":
            send(victim, signal.SIGSTOP)
            self.pause(self._random.choice((0.5, LEASE + 1.5)))
            send(victim, signal.SIGCONT)
        elif what == "worker" and len(workers) > 1:
            send(victim, signal.SIGKILL)
        else:
            self.gateways.kill(number)
            self.pause(self._random.uniform(0.0, 1.0))
            self.gateways.start_again(number)

    def check(self) -> None:
        """Compare what clients were told with what is there."""
        faults = self.ledger.faults
        everywhere = list(self.gateways)
        for id, token in self.ledger.runs.items():
            faults += self._faults_of_run(id, token, everywhere)
        for number, (id, response) in enumerate(self.ledger.kept.items()):
            if everywhere[number % len(everywhere)].retrieve(id) != response:
                faults.append(f"{id} was told, and is not there")
        faults += [f"{first} was answered twice: {ids}" for first, ids in self.ledger.answers.items() if len(ids) > 1]
        faults += self._faults_of_tools()
        for talk in self.ledger.talks:
            faults += self._faults_of_talk(talk, everywhere[0])
        assert faults == []

    def _faults_of_run(self, id: str, token: str, everywhere: list[Responses]) -> list[str]:
        first, *others = everywhere
        done, log, seen = over(first, id), frames(first, id), self.ledger.seen[id]
        faults = [f"{id} is another one elsewhere" for api in others if api.retrieve(id) != done]
        faults += [f"the log of {id} is another one elsewhere" for api in others if frames(api, id) != log]
        if log[: len(seen)] != seen:
            faults.append(f"{id}: a follower saw what is not kept")
        if done["status"] == "completed" and text_of(done) != answer(token):
            faults.append(f"{id} says {text_of(done)!r}")
        if done["status"] != "completed" and (done["error"] or {}).get("code") != "owner_lost":
            faults.append(f"{id} is {done['status']}: {done['error']}")
        if done["status"] not in OVER:
            faults.append(f"{id} is not over")
        return faults

    def _faults_of_tools(self) -> list[str]:
        noted = self._folder / "noted"
        counts = Counter(noted.read_text().split() if noted.exists() else ())
        return [f"the tool of {token} ran {counts[token]} times" for token in self.ledger.noted if counts[token] > 1]

    def _faults_of_talk(self, talk: str, api: Responses) -> list[str]:
        """Questions and answers take turns, and none is missing or doubled."""
        url = f"{api.url.replace('/responses', '/conversations')}/{talk}/items"
        items = api.http.get(url, params={"limit": 100, "order": "asc"}).json()["data"]
        said = ["".join(part["text"] for part in item["content"]) for item in items]
        tokens = [question.removeprefix("token ").removesuffix(".") for question in said[::2]]
        faults = [f"{talk}: {token} is doubled" for token, count in Counter(tokens).items() if count > 1]
        if said[1::2] != [answer(token) for token in tokens]:
            faults.append(f"{talk} is mixed: {said}")
        return faults
