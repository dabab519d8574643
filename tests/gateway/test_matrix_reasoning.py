"""ReasoningCache on every route: they go back to whoever had them, and to nobody else."""

import json
from typing import Any

import pytest

from tests.support.backend_writers import in_base64, refusal
from tests.support.conversations import AGENTS, CLIENTS, Client, Result, ScriptedConversation, Step, Strict
from tests.support.routes import Routes, question
from tests.support.scripts import NAMES, Calls, Name, Says, Script, Thinks
from tests.support.strict import UNKNOWN_SIGNATURE
from tests.support.transcripts import Model, transcript
from tests.support.upstream import Asked, Reply

Json = dict[str, Any]

SEALED = Script((Thinks("Hm.", "SEAL"), Says("So."), Calls("call_a", "look", "{}")))
DONE = Script((Says("Done."),))
RESULT = Result("call_a", "Here.")
CONVERSATION = ScriptedConversation((Step(SEALED, "Go."), Step(DONE, results=(RESULT,))), thinks=True)
SEALING = pytest.mark.parametrize("kind", ["responses", "messages"])


def _seals(kind: Name, body: Json) -> list[str]:
    return [signature for line in transcript(kind, body) if isinstance(line, Model) for signature in line.signatures]


@pytest.mark.parametrize(
    ("client", "kind", "other"),
    [
        ("responses", "responses", "messages"),
        ("responses", "messages", "responses"),
        ("messages", "messages", "responses"),
        ("messages", "responses", "messages"),
    ],
)
def test_a_thought_that_cannot_go_on_leaves_a_note(routes: Routes, client: Client, kind: Name, other: Name):
    models = [f"notes {client} {kind} {other} {place}" for place in ("first", "second")]
    service = Strict(other, [DONE], stream=False)
    routes.upstream.replies |= {models[0]: Strict(kind, [SEALED], stream=False), models[1]: service}
    agent = AGENTS[client](routes, f"{kind}/{models[0]}", CONVERSATION, stream=False)
    agent.take(CONVERSATION.steps[0])
    agent.switch(f"{other}/{models[1]}")
    response = routes.post(agent.dialect, agent.request(CONVERSATION.steps[1]))
    assert "reasoning_dropped" in [note["code"] for note in json.loads(response.headers["x-toolwire-notes"])]
    assert _seals(other, service.bodies[-1]) == []


@SEALING
def test_nobody_else_gets_a_thought_that_was_kept_for_a_chat_client(routes: Routes, kind: Name):
    model = f"keeps {kind}"
    service = Strict(kind, [SEALED, DONE, DONE], stream=False)
    routes.upstream.replies[model] = service
    agent = AGENTS["chat"](routes, f"{kind}/{model}", CONVERSATION, stream=False)
    agent.take(CONVERSATION.steps[0])
    body = agent.request(CONVERSATION.steps[1])
    routes.ask("chat", body, f"{kind}/{model}")
    assert _seals(kind, service.bodies[-1]) == ["SEAL"]
    routes.ask("chat", body, "somebody else")
    assert _seals(kind, service.bodies[-1]) == []


@pytest.mark.parametrize("kind", ["responses", "messages", "gemini"])
def test_a_thought_that_the_client_changed_goes_back_as_it_was(routes: Routes, kind: Name):
    model = f"changes {kind}"
    other: Client = "messages" if kind == "responses" else "responses"
    service = Strict(kind, [SEALED, DONE], stream=False)
    routes.upstream.replies[model] = service
    agent = AGENTS[other](routes, f"{kind}/{model}", CONVERSATION, stream=False)
    agent.take(CONVERSATION.steps[0])
    body = json.loads(json.dumps(agent.request(CONVERSATION.steps[1])).replace('"Hm."', '"Aha."'))
    routes.ask(other, body, f"{kind}/{model}")
    assert _seals(kind, service.bodies[-1]) == ["SEAL"]
    assert "Aha." not in json.dumps(service.bodies[-1])


@pytest.mark.parametrize(
    ("client", "kind"),
    [
        ("responses", "messages"),
        ("messages", "responses"),
        ("responses", "responses"),
        ("messages", "messages"),
        ("responses", "gemini"),
        ("messages", "gemini"),
    ],
)
def test_a_forged_seal_is_no_reason_to_fail(routes: Routes, client: Client, kind: Name):
    """What has our mark and cannot be read is left out; the real service would refuse the whole request."""
    model = f"forged {client} {kind}"
    routes.upstream.replies[model] = Strict(kind, [DONE], stream=False)
    body = question(AGENTS[client].dialect, f"{kind}/{model}", (), stream=False)
    forged = "toolwire.signature.1.bm90IG91cnM"
    if client == "responses":
        body["input"] += [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": forged}, {"role": "assistant", "content": "So."}, {"role": "user", "content": "Go on."}]  # fmt: skip
    else:
        thought = {"type": "thinking", "thinking": "Hm.", "signature": forged}
        body["messages"] += [{"role": "assistant", "content": [thought, {"type": "text", "text": "So."}]}, {"role": "user", "content": "Go on."}]  # fmt: skip
    assert routes.ask(AGENTS[client].dialect, body).seen.text == "Done."


# Signatures on calls, as Gemini 3 has them


class Account(Strict):
    """A Gemini service of another account, to which the signatures of the first one are corrupted."""

    def __call__(self, asked: Asked) -> Reply:
        self.bodies.append(asked.body)
        if in_base64("SEAL") in json.dumps(asked.body):
            return Reply([refusal("gemini", 400, "Corrupted thought signature.")], 400, "application/json")
        return super().__call__(asked)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_signature_is_replaced_by_the_unknown_one(routes: Routes, client: Client):
    model = f"accounts {client}"
    routes.upstream.replies[model] = Strict("gemini", [SEALED], stream=False)
    agent = AGENTS[client](routes, f"gemini/{model}", CONVERSATION, stream=False)
    agent.take(CONVERSATION.steps[0])
    routes.upstream.replies[model] = other = Account("gemini", [DONE], stream=False)
    response = routes.post(agent.dialect, agent.request(CONVERSATION.steps[1]), f"gemini/{model}")
    assert response.status_code == 200, response.text
    notes = json.loads(response.headers["x-toolwire-notes"])
    assert [note["code"] for note in notes] == ["reasoning_dropped", "signature_missing"]
    [*_, model_content, _] = other.bodies[-1]["contents"]
    assert [part.get("thoughtSignature") for part in model_content["parts"]] == [None, UNKNOWN_SIGNATURE]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("first", NAMES)
def test_the_calls_of_another_model_have_the_unknown_signature(routes: Routes, client: Client, first: Name):
    models = [f"unsigned {client} {first} {place}" for place in ("first", "second")]
    service = Strict("gemini", [DONE], stream=False)
    routes.upstream.replies |= {models[0]: Strict(first, [SEALED], stream=False), models[1]: service}
    agent = AGENTS[client](routes, f"{first}/{models[0]}", CONVERSATION, stream=False)
    agent.take(CONVERSATION.steps[0])
    agent.switch(f"gemini/{models[1]}")
    response = routes.post(agent.dialect, agent.request(CONVERSATION.steps[1]), f"{first}/{models[0]}")
    assert response.status_code == 200, response.text
    assert "signature_missing" in [note["code"] for note in json.loads(response.headers["x-toolwire-notes"])]
    assert json.dumps(service.bodies[-1]).count(UNKNOWN_SIGNATURE) == 1
