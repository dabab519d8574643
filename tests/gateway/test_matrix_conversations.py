"""The matrix, over several turns: whole conversations with tools on every route, with services that are strict.

A conversation is a row of `TALKS`. After every step the client holds the turn that the service told, and the service
was told all that was said before, in an order and a form that the real one takes.
"""

from typing import Any

import pytest

from tests.gateway.test_matrix import case_id, translates
from tests.support.conversations import AGENTS, CLIENTS, Client, Result, ScriptedConversation, Step, Strict, dialect_of
from tests.support.pairs import pairwise
from tests.support.routes import Routes
from tests.support.scripts import FIND, KINDS, LOOK, Calls, Declared, Declines, Name, Says, Script, Thinks, truth
from tests.support.transcripts import expected, transcript

A, B, C = Calls("call_a", "look", '{"path":"a b"}'), Calls("call_b", "find", '{"q":[1]}'), Calls("call_c", "look", "{}")
PATCH = Calls("call_p", "patch", "*** Begin\n+é\n", "custom")


def then(*items: Any) -> Script:
    return Script(items)


DONE = then(Says("Done."))
SEEN = Result("call_a", "It is here.")
AND_NOW = Step(then(Says("You're welcome.")), "Thanks.")
AGAIN = (Says("Again."), Calls("call_z", "find", "{}"))
THERE = Step(then(Says("Still there.")), results=(Result("call_z", "Yes."),))


def calls_and_results(turn: Script, *results: Result, user: str = "") -> tuple[Step, ...]:
    """A question, the turn that calls, its results, an answer; and a second question."""
    return (Step(turn, "Go."), Step(DONE, user, results), AND_NOW)


def at_length(turn: Script, *results: Result) -> tuple[Step, ...]:
    """The same, and a third question, with a call of its own."""
    thinks = [Thinks("Again?", "S9")] if any(isinstance(item, Thinks) for item in turn.items) else []
    return (*calls_and_results(turn, *results), Step(then(*thinks, *AGAIN), "Once more."), THERE)


CONVERSATIONS: dict[str, ScriptedConversation] = {
    "only words": ScriptedConversation((Step(then(Says("Hello.")), "Hi."), AND_NOW)),
    "no system, no tools": ScriptedConversation((Step(then(Says("Hello.")), "Hi."), AND_NOW), system="", tools=()),
    "one call": ScriptedConversation(at_length(then(A), SEEN)),
    "a call without arguments": ScriptedConversation(calls_and_results(then(Calls("call_a", "look", "")), SEEN)),
    "text, then a call": ScriptedConversation(calls_and_results(then(Says("Let me see."), A), SEEN)),
    "a call, then text": ScriptedConversation(calls_and_results(then(A, Says("I have called.")), SEEN)),
    "three calls, answered in order": ScriptedConversation(calls_and_results(then(A, B, C), SEEN, Result("call_b", "2"), Result("call_c", "3"))),
    "three calls, answered in another order": ScriptedConversation(at_length(then(A, B, C), Result("call_c", "3"), SEEN, Result("call_b", "2"))),
    "calls and calls again": ScriptedConversation((Step(then(A), "Go."), Step(then(Says("And."), B, C), results=(SEEN,)), *calls_and_results(DONE, Result("call_b", "2"), Result("call_c", "3"))[1:])),
    "an answer and a word": ScriptedConversation(calls_and_results(then(A, B), SEEN, Result("call_b", "2"), user="Hurry.")),
    "an empty result": ScriptedConversation(calls_and_results(then(A, B), Result("call_a"), Result("call_b"))),
    "a thought and a call": ScriptedConversation(calls_and_results(then(Thinks("Hm, well.", "S1"), A), SEEN), thinks=True),
    "a thought, text and calls": ScriptedConversation(at_length(then(Thinks("Hm, well.", "S1"), Says("So."), A, B), Result("call_b", "2"), SEEN), thinks=True),
    "a thought before every call": ScriptedConversation((Step(then(Thinks("One.", "S1"), A), "Go."), Step(then(Thinks("Two.", "S2"), B), results=(SEEN,)), Step(then(Thinks("Three.", "S3"), Says("Done.")), results=(Result("call_b", "2"),)), AND_NOW), thinks=True),
    "thoughts between calls": ScriptedConversation(calls_and_results(then(Thinks("One.", "S1"), A, Thinks("Two.", "S2"), B), SEEN, Result("call_b", "2")), thinks=True, kinds=("responses", "messages")),
    "a hidden thought": ScriptedConversation(calls_and_results(then(Thinks("", "S1", redacted=True), A), SEEN), thinks=True),
    "two thoughts in a row": ScriptedConversation(calls_and_results(then(Thinks("One.", "S1"), Thinks("", "S2", redacted=True), A), SEEN), thinks=True, kinds=("responses", "messages")),
    "a thought without a call": ScriptedConversation((Step(then(Thinks("Hm.", "S1"), Says("Hello.")), "Hi."), AND_NOW), thinks=True),
    "a result that failed": ScriptedConversation(calls_and_results(then(A, B), Result("call_a", "No such file.", failed=True), Result("call_b", "2")), clients=("messages", "gemini")),
    "a result with an image": ScriptedConversation(at_length(then(A, B), Result("call_a", "Look:", image=True), Result("call_b", "2")), clients=("responses", "messages", "gemini", "chained")),
    "a custom tool": ScriptedConversation(at_length(then(PATCH, A), Result("call_p", "Patched."), SEEN), tools=(LOOK, FIND, Declared("patch", "custom")), clients=("chat", "responses", "chained")),
    "a namespace": ScriptedConversation(calls_and_results(then(Calls("call_a", "look", "{}", namespace="files"), B), SEEN, Result("call_b", "2")), tools=(LOOK, FIND, Declared("look", namespace="files")), clients=("responses", "chained")),
    "a refusal": ScriptedConversation((Step(then(Declines("I can't.")), "Go."), AND_NOW), kinds=("chat", "responses")),
    "whitespace and a call": ScriptedConversation(calls_and_results(then(Says("\n\n"), A), SEEN)),
    "an empty turn": ScriptedConversation((Step(then(), "Go."), AND_NOW)),
}  # fmt: skip


CASES = [
    (name, client, kind, stream)
    for name, conversation in CONVERSATIONS.items()
    for client in conversation.clients
    for kind in conversation.kinds
    for stream in (True, False)
]


@pytest.mark.parametrize(("name", "client", "kind", "stream"), pairwise(CASES, case_id, translates))
def test_a_conversation_goes_on(routes: Routes, name: str, client: Client, kind: Name, stream: bool):
    conversation, model = CONVERSATIONS[name], f"talks {name} {client} {kind} {stream}"
    service = Strict(kind, [step.turn for step in conversation.steps], stream=stream)
    routes.upstream.replies[model] = service
    agent = AGENTS[client](routes, f"{kind}/{model}", conversation, stream=stream)
    for place, step in enumerate(conversation.steps):
        seen = agent.take(step)
        assert seen == truth(step.turn, dialect_of(client), kind, stream=stream)
        assert transcript(kind, service.bodies[-1]) == expected(conversation, client, kind, until=place)


# Another model in the middle of a conversation

IDS: dict[Name, tuple[str, str]] = {
    # As Kimi and vLLM, OpenAI, Anthropic write them
    "chat": ("functions.look:0", f"chatcmpl-tool-{'0123abcd' * 4}"),
    "responses": ("call_0123456789abcdefghijABCD", "call_1123456789abcdefghijABCD"),
    "messages": ("toolu_01A09q90qw90lq917835lq9", "toolu_01B09q90qw90lq917835lq9"),
    "gemini": ("1zgnzmz8", "2zgnzmz8"),
}
SWITCHES = [
    pytest.param(client, first, second, id=f"{client}-{first}-{second}")
    for client in CLIENTS
    for first in KINDS
    for second in KINDS
    # Where client and service speak one dialect, a signature says nothing about who made it.
    if not (first == second == dialect_of(client))
]  # fmt: skip


@pytest.mark.parametrize(("client", "first", "second"), SWITCHES)
def test_another_model_can_go_on(routes: Routes, client: Client, first: Name, second: Name):
    one, two = IDS[first]
    turn = then(Thinks("Hm.", "SEAL"), Says("So."), Calls(one, "look", "{}"), Calls(two, "find", "{}"))
    conversation = ScriptedConversation(
        (Step(turn, "Go."), Step(DONE, results=(Result(two, "2"), Result(one, "1"))), AND_NOW), thinks=True
    )
    models = [f"{place} of {client} {first} {second}" for place in ("first", "second")]
    services = Strict(first, [turn], stream=False), Strict(second, [DONE, AND_NOW.turn], stream=False)
    routes.upstream.replies |= dict(zip(models, services, strict=True))
    agent = AGENTS[client](routes, f"{first}/{models[0]}", conversation, stream=False)
    agent.take(conversation.steps[0])
    agent.switch(f"other-{second}/{models[1]}")
    for place in (1, 2):
        agent.take(conversation.steps[place])
        # What the first one thought is signed, and nobody else's to read.
        known = expected(conversation, client, "chat", until=place)
        assert transcript(second, services[1].bodies[-1]) == known


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_ids_that_come_again_in_every_turn_are_no_trouble_for_another_model(routes: Routes, client: Client, kind: Name):
    turn = then(Calls("functions.look:0", "look", "{}"))
    again = Result("functions.look:0", "Here.")
    conversation = ScriptedConversation((Step(turn, "Go."), Step(turn, results=(again,)), Step(DONE, results=(again,))))
    models = [f"{place} of {client} {kind} again" for place in ("first", "second")]
    services = Strict("chat", [turn, turn], stream=False), Strict(kind, [DONE], stream=False)
    routes.upstream.replies |= dict(zip(models, services, strict=True))
    agent = AGENTS[client](routes, f"chat/{models[0]}", conversation, stream=False)
    agent.take(conversation.steps[0])
    agent.take(conversation.steps[1])
    agent.switch(f"other-{kind}/{models[1]}")
    assert agent.take(conversation.steps[2]).text == "Done."
