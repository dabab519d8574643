"""A gateway with a backend of each kind, and behind all of them one upstream that plays every server.

    stage.script("m", [Use("c1", "look", "{}")], [Words("It is there.")])

Then `responses/m`, `chat/m` and `messages/m` are models that say this. A model without a script decides for itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.clients.servers import KINDS, Json, Turn, kind_of, told
from tests.support.gateway import Gateway
from tests.support.upstream import Asked, Reply, Upstream


class Stage:
    def __init__(self, folder: Path, decide: Callable[[Asked], Turn]) -> None:
        self._decide = decide
        self._scripts: dict[str, list[Turn]] = {}
        self.upstream = Upstream()
        self.upstream.replies = _MadeUp(self._reply)
        self.gateway = Gateway(folder, configured(self.upstream.url))

    def stop(self) -> None:
        self.gateway.stop()
        self.upstream.stop()

    def script(self, model: str, *turns: Turn) -> None:
        """Have a model say these turns one after the other, and the last one again and again."""
        self._scripts[model] = list(turns)

    def asked(self, model: str, kind: str) -> list[Asked]:
        return [asked for asked in self.upstream.of(model) if kind_of(asked) == kind]

    def notes(self, model: str, turns: int) -> list[Json]:
        """How often which note was made in each turn, by the gateway's log, whose last line may come late."""

        def found() -> list[Json]:
            return [line["notes"] for line in self.gateway.turns() if line.get("model") == model]

        self.gateway.wait_until(lambda: len(found()) >= turns)
        return found()

    def _reply(self) -> Reply:
        asked = self.upstream.asked[-1]
        turns = self._scripts.get(asked.body["model"])
        if turns is None:
            return told(asked, self._decide(asked))
        return told(asked, turns.pop(0) if len(turns) > 1 else turns[0])


class _MadeUp(dict[str, Any]):
    """Replies that are made when they are looked up, for the request that was heard last."""

    def __init__(self, reply: Callable[[], Reply]) -> None:
        super().__init__()
        self._reply = reply

    def __missing__(self, model: str) -> Reply:
        return self._reply()


def configured(url: str) -> str:
    """A backend of each kind, and a chat server that wants its thoughts back."""
    address = f'base_url = "{url}"\nretries = 0\n'
    profile = 'profile = { reasoning = "reasoning_content" }\n'
    tables = [f'[[backends]]\nname = "{kind}"\nkind = "{kind}"\n{address}' for kind in KINDS]
    return "\n".join((*tables, f'[[backends]]\nname = "thinker"\nkind = "chat"\n{profile}{address}'))
