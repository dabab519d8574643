"""A gateway that is killed between a call and its result goes on with the turn: nothing its client does not carry is lost."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.test_gateway_tools import FOUND, OWN, ROME, SEEK, SHED
from tests.gateway.test_reasoning_fields import Forgetful, Gemini, Server
from tests.support.conversations import AGENTS, Agent, Result, ScriptedConversation, Step, Strict
from tests.support.gateway import Gateway
from tests.support.routes import Routes, backends
from tests.support.scripts import FIND, LOOK, NAMES, Calls, Name, Says, Script, Thinks
from tests.support.upstream import Upstream

Json = dict[str, Any]
LOOKED, SPOTTED = Step(Script(()), results=(Result("call_1", "Here."),)), Step(Script(()), results=(FOUND,))
BOTH = Step(Script(()), results=(Result("call_1", "Here."), Result("call_2", "There.")))
DONE = Script((Says("Done."),))
CALL, OTHER = Calls("call_1", "look", "{}"), Calls("call_2", "look", "{}")


class Case:
    """A conversation whose first turn is before the crash."""

    def __init__(self, routes: Routes, name: str, client: str, kind: Name, service: Any, then: Step = LOOKED) -> None:
        self.routes = routes
        self.service = service
        self.model = f"{kind}/{name} {client} {kind}"
        self.kind: Name = kind
        routes.upstream.replies[f"{name} {client} {kind}"] = service
        made = Forgetful if client == "forgetful" else AGENTS[client]  # type: ignore[index]
        tools = (FIND,) if then is SPOTTED else (LOOK,)
        self.agent: Agent = made(
            routes, self.model, ScriptedConversation((), tools=tools, thinks=kind != "chat"), stream=True
        )
        self.then = then

    def begin(self) -> None:
        assert self.agent.take(Step(Script(()), "Go.")).calls

    def sent(self) -> str:
        """What the backend is asked after the crash."""
        assert self.agent.take(self.then).text == "Done."
        return json.dumps(self.service.bodies[-1])


def thinking(kind: Name, *calls: Calls) -> Strict:
    return Strict(kind, [Script((Thinks("I must look.", "SIGNED"), *calls)), DONE, DONE, DONE], stream=True)


def cases(routes: Routes) -> Iterator[tuple[str, Case]]:
    for kind in ("responses", "messages"):
        yield f"reasoning of {kind}", Case(routes, "signed", "forgetful", kind, thinking(kind, CALL))
        yield f"batch of {kind}", Case(routes, "batch", "forgetful", kind, thinking(kind, CALL, OTHER), BOTH)
        yield f"stolen from {kind}", Case(routes, "stolen", "forgetful", kind, thinking(kind, CALL))
    for client in ("forgetful", "messages", "responses"):
        yield f"fields for {client}", Case(routes, "fields", client, "chat", Server(stream=True))
        yield f"call for {client}", Case(routes, "call", client, "chat", Gemini(stream=True))
        for kind in NAMES:
            service = Strict(kind, [Script((ROME, SEEK)), DONE, DONE], stream=True)
            yield f"results of {kind} for {client}", Case(routes, "results", client, kind, service, SPOTTED)
    yield "origin", Case(routes, "origin", "messages", "messages", thinking("messages", CALL))


@pytest.fixture(scope="module")
def crashed(
    upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Case]]:
    """Conversations that wait for results, at a gateway that was killed and has been started again."""
    folder: Path = tmp_path_factory.mktemp("restarts")
    (folder / "shed.py").write_text(SHED)
    config = OWN + '[store]\nurl = "sqlite:kept.db"\n' + backends(upstream.url)
    routes = Routes(Gateway(folder, config, PYTHONPATH=str(folder)), upstream, http)
    begun = dict(cases(routes))
    for case in begun.values():
        case.begin()
    routes.gateway.kill()
    routes.gateway = Gateway(folder, config, PYTHONPATH=str(folder))
    yield begun
    routes.gateway.stop()


@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_signed_reasoning_returns_for_a_client_that_cannot_carry_it(crashed: dict[str, Case], kind: str):
    assert crashed[f"reasoning of {kind}"].sent().count("SIGNED") == 1


@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_reasoning_that_led_to_two_calls_returns_once(crashed: dict[str, Case], kind: str):
    assert crashed[f"batch of {kind}"].sent().count("SIGNED") == 1


@pytest.mark.parametrize("client", ["forgetful", "messages", "responses"])
@pytest.mark.parametrize("what", ["fields", "call"])
def test_a_chat_server_gets_back_what_it_wrote(crashed: dict[str, Case], what: str, client: str):
    """It refuses to go on otherwise."""
    case = crashed[f"{what} for {client}"]
    assert case.agent.take(LOOKED).calls, "it makes its second call"


@pytest.mark.parametrize("client", ["forgetful", "messages", "responses"])
@pytest.mark.parametrize("kind", NAMES)
def test_results_of_gateway_tools_are_put_beside_those_of_the_client(crashed: dict[str, Case], kind: str, client: str):
    assert "18 degrees in Rome" in crashed[f"results of {kind} for {client}"].sent()


def test_which_backend_made_a_signature_is_still_known(crashed: dict[str, Case]):
    case = crashed["origin"]
    case.agent.switch(case.model.replace("messages/", "other-messages/"))
    assert "SIGNED" not in case.sent()


@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_another_owner_gets_nothing_of_it(crashed: dict[str, Case], kind: str):
    case = crashed[f"stolen from {kind}"]
    body = case.agent.request(LOOKED)
    for key, found in (("somebody else", 0), (case.model, 1)):
        case.routes.ask("chat", body, key)
        assert json.dumps(case.service.bodies[-1]).count("SIGNED") == found
