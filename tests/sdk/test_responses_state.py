"""openai-python and what the gateway keeps: stored responses, background runs, compaction and conversations."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from tests.sdk.recording_client import GET_WEATHER, output_of, user, watched_client
from tests.sdk.turns import ANSWER, QUESTION, RESULT, USAGE, turn
from tests.support.frames import completed, created, stream, text
from tests.support.upstream import Hold, Pause, Reply, Upstream

RUNNING = ("queued", "in_progress")
WORDS = ["One", " two", " three", " four"]


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with watched_client(base_url) as client:
        yield client


@pytest.fixture
def slow_model(upstream: Upstream) -> str:
    """A model that says a word now and then."""
    pieces = [step for word in WORDS for step in (text(word), Pause(0.05))]
    upstream.replies["slow"] = Reply([created(), *pieces, completed(usage=USAGE)])
    return "up/slow"


@pytest.fixture
def endless_model(upstream: Upstream) -> str:
    """A model that begins and never ends."""
    upstream.replies["endless"] = Reply([stream(created(), text("So")), Hold()])
    return "up/endless"


def until(client: openai.OpenAI, id: str, is_there: Callable[[Response], bool]) -> Response:
    """Poll a response as a client does."""
    end = time.monotonic() + 60
    response = client.responses.retrieve(id)
    while not is_there(response) and time.monotonic() < end:
        time.sleep(0.02)
        response = client.responses.retrieve(id)
    return response


def finished(client: openai.OpenAI, id: str) -> Response:
    return until(client, id, lambda response: response.status not in RUNNING)


def is_gone(client: openai.OpenAI, id: str) -> bool:
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve(id)
    return caught.value.code == "response_not_found"


def said(items: Any) -> list[str]:
    return [part.text for item in items for part in item.content]


def submit(client: openai.OpenAI, id: str, *outputs: tuple[str, str], **fields: Any) -> Response:
    """The SDK has no word for this endpoint any more; its own way to call any path is used."""
    given = [{"tool_call_id": call, "output": output} for call, output in outputs]
    body = {"tool_outputs": given, **fields}
    return client.post(f"/responses/{id}/submit_tool_outputs", cast_to=Response, body=body)


# Stored responses


@pytest.mark.parametrize("model", ["up/client-text", "up/client-parallel", "up/client-custom", "up/client-length"])
def test_a_response_can_be_asked_for_again(client: openai.OpenAI, model: str):
    response = client.responses.create(model=model, input=QUESTION, tools=[GET_WEATHER], metadata={"a": "b"})
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def test_a_streamed_response_can_be_asked_for_again(client: openai.OpenAI):
    *_, last = client.responses.create(model="demo", input=QUESTION, tools=[GET_WEATHER], stream=True)
    assert client.responses.retrieve(last.response.id).to_dict() == last.response.to_dict()


@pytest.mark.parametrize("turn", ["text", "reasoning", "parallel", "custom", "refusal", "length"])
def test_a_response_can_be_streamed_again(client: openai.OpenAI, turn: str):
    response = client.responses.create(model=f"up/client-{turn}", input=QUESTION, tools=[GET_WEATHER])
    *events, last = client.responses.retrieve(response.id, stream=True)
    assert last.response.to_dict() == response.to_dict()
    done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    assert done == [item.to_dict() for item in response.output]


@pytest.mark.parametrize("background", [False, True])
def test_a_stream_can_be_taken_up_after_any_event(client: openai.OpenAI, background: bool):
    asked = {"model": "up/client-one-call", "input": QUESTION, "tools": [GET_WEATHER], "background": background}
    response = finished(client, client.responses.create(**asked).id)
    whole = [event.to_dict() for event in client.responses.retrieve(response.id, stream=True)]
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    for place in (0, 3, len(whole) - 2):
        rest = client.responses.retrieve(response.id, stream=True, starting_after=place)
        assert [event.to_dict() for event in rest] == whole[place + 1 :]


def test_the_helper_takes_up_a_stored_stream(client: openai.OpenAI):
    response = client.responses.create(model="up/client-text", input=QUESTION)
    with client.responses.stream(response_id=response.id, starting_after=1) as stream:
        numbers = [event.sequence_number for event in stream]
        assert stream.get_final_response().output_text == "Hello, world."
    assert numbers[0] == 2


def test_a_deleted_response_is_gone(client: openai.OpenAI):
    id = client.responses.create(model="up/client-text", input=QUESTION).id
    client.responses.delete(id)
    assert is_gone(client, id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="up/client-text", input=QUESTION, previous_response_id=id)


def test_a_response_that_was_not_to_be_stored_is_not_there(client: openai.OpenAI):
    assert is_gone(client, client.responses.create(model="up/client-text", input=QUESTION, store=False).id)


def test_a_response_that_never_was_is_not_there(client: openai.OpenAI):
    assert is_gone(client, "resp_nobody")


def test_a_stream_that_its_client_left_is_kept_as_cancelled(client: openai.OpenAI, endless_model: str):
    with client.responses.create(model=endless_model, input=QUESTION, stream=True) as stream:
        id = next(stream).response.id
        next(event for event in stream if event.type == "response.output_text.delta")
    end = time.monotonic() + 60
    kept: list[Response] = []
    while not kept and time.monotonic() < end:
        with suppress(openai.NotFoundError):
            kept.append(client.responses.retrieve(id))
        time.sleep(0.02)
    assert [(response.status, response.output_text) for response in kept] == [("cancelled", "So")]


def test_another_key_does_not_see_the_response(client: openai.OpenAI):
    response = client.responses.create(model="up/client-text", input=QUESTION)
    assert is_gone(client.with_options(api_key="another"), response.id)


def test_submitted_outputs_continue_a_response(client: openai.OpenAI):
    first = client.responses.create(model="demo", input=QUESTION, tools=[GET_WEATHER])
    second = submit(client, first.id, (first.output[-1].call_id, RESULT))
    assert (second.output_text, second.previous_response_id) == (ANSWER, first.id)
    assert "required_action" not in client.responses.retrieve(first.id).to_dict()
    assert submit(client, first.id, (first.output[-1].call_id, RESULT)).to_dict() == second.to_dict()


def test_submitted_outputs_can_be_answered_in_a_stream(client: openai.OpenAI):
    first = client.responses.create(model="demo", input=QUESTION, tools=[GET_WEATHER])
    given = [{"tool_call_id": first.output[-1].call_id, "output": RESULT}]
    *_, last = client.post(
        f"/responses/{first.id}/submit_tool_outputs",
        cast_to=Response,
        body={"tool_outputs": given, "stream": True},
        stream=True,
        stream_cls=openai.Stream[ResponseStreamEvent],
    )
    assert (last.type, last.response.output_text) == ("response.completed", ANSWER)


def test_outputs_are_wanted_for_every_call_and_for_no_other(client: openai.OpenAI):
    first = client.responses.create(model="up/client-parallel", input=QUESTION, tools=[GET_WEATHER])
    with pytest.raises(openai.BadRequestError, match="c2") as caught:
        submit(client, first.id, ("c1", RESULT))
    assert caught.value.param == "tool_outputs"
    with pytest.raises(openai.BadRequestError, match="c9") as caught:
        submit(client, first.id, ("c1", RESULT), ("c9", RESULT))
    assert caught.value.param == "tool_outputs[1].tool_call_id"


# Input items


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_input_items_come_in_pages(client: openai.OpenAI, order: Any, limit: int):
    words = ["One.", "Two.", "Three.", "Four.", "Five."]
    id = client.responses.create(model="up/client-text", input=user(*words)).id
    items = list(client.responses.input_items.list(id, order=order, limit=limit))
    assert said(items) == (words if order == "asc" else words[::-1])
    assert len({item.id for item in items}) == 5


def test_a_page_of_input_items_begins_after_an_item(client: openai.OpenAI):
    id = client.responses.create(model="up/client-text", input=user("One.", "Two.", "Three.", "Four.")).id
    first = client.responses.input_items.list(id, order="asc", limit=2)
    assert (said(first.data), first.has_more) == (["One.", "Two."], True)
    second = client.responses.input_items.list(id, order="asc", limit=2, after=first.data[-1].id)
    assert (said(second.data), second.has_more) == (["Three.", "Four."], False)


def test_the_newest_input_item_comes_first(client: openai.OpenAI):
    id = client.responses.create(model="up/client-text", input=user("One.", "Two.")).id
    assert said(client.responses.input_items.list(id)) == ["Two.", "One."]


def test_an_output_is_an_input_item_of_the_response_it_was_sent_for(client: openai.OpenAI):
    first = client.responses.create(model="up/client-one-call", input=QUESTION, tools=[GET_WEATHER])
    asked = {"input": [output_of("c1", RESULT)], "previous_response_id": first.id}
    second = client.responses.create(model="up/client-text", **asked)
    newest = client.responses.input_items.list(second.id).data[0]
    assert newest.type == "function_call_output"
    assert (newest.call_id, newest.output) == ("c1", RESULT)


@pytest.mark.parametrize(
    ("query", "param"), [({"limit": 101}, "limit"), ({"order": "up"}, "order"), ({"after": "msg_nobody"}, "after")]
)
def test_a_page_that_cannot_be_had_is_refused(client: openai.OpenAI, query: dict[str, Any], param: str):
    id = client.responses.create(model="up/client-text", input=QUESTION).id
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_items.list(id, **query)
    assert caught.value.param == param


# In the background


def test_a_background_response_can_be_polled(client: openai.OpenAI, slow_model: str):
    queued = client.responses.create(model=slow_model, input=QUESTION, background=True)
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    response = finished(client, queued.id)
    assert (response.status, response.output_text, response.background) == ("completed", "One two three four", True)


def test_a_background_response_can_call_a_tool(client: openai.OpenAI):
    first = client.responses.create(model="demo", input=QUESTION, tools=[GET_WEATHER], background=True)
    call = finished(client, first.id).output[-1]
    assert call.type == "function_call"
    asked = {"input": [output_of(call.call_id, RESULT)], "previous_response_id": first.id, "background": True}
    assert finished(client, client.responses.create(model="demo", **asked).id).output_text == ANSWER


def test_a_background_response_that_fails_says_why(client: openai.OpenAI):
    queued = client.responses.create(model="up/client-error-middle", input=QUESTION, background=True)
    response = finished(client, queued.id)
    assert response.error is not None
    assert (response.status, response.error.message) == ("failed", "It broke.")
    assert response.output_text == "Half an"


def test_a_background_stream_can_be_left_and_taken_up_again(client: openai.OpenAI, slow_model: str):
    seen: list[Any] = []
    with client.responses.create(model=slow_model, input=QUESTION, background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    id, last = seen[0].response.id, seen[-1].sequence_number
    seen += client.responses.retrieve(id, stream=True, starting_after=last)
    assert [event.type for event in seen][:3] == ["response.created", "response.queued", "response.in_progress"]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == "".join(WORDS)
    assert seen[-1].response.to_dict() == client.responses.retrieve(id).to_dict()


def test_the_helper_follows_a_background_response(client: openai.OpenAI, slow_model: str):
    with client.responses.stream(model=slow_model, input=QUESTION, background=True) as stream:
        assert stream.get_final_response().output_text == "One two three four"


def test_a_background_response_can_be_cancelled(client: openai.OpenAI, endless_model: str, upstream: Upstream):
    upstream.gone.clear()
    id = client.responses.create(model=endless_model, input=QUESTION, background=True).id
    until(client, id, lambda response: response.status == "in_progress")
    cancelled = client.responses.cancel(id)
    assert (cancelled.id, cancelled.status) == (id, "cancelled")
    assert upstream.gone.wait(60)
    assert client.responses.retrieve(id).status == "cancelled"
    assert client.responses.cancel(id).status == "cancelled"


def test_a_background_response_that_is_over_stays_as_it_is_when_cancelled(client: openai.OpenAI):
    id = client.responses.create(model="up/client-text", input=QUESTION, background=True).id
    response = finished(client, id)
    assert client.responses.cancel(id).to_dict() == response.to_dict()


def test_only_a_background_response_can_be_cancelled(client: openai.OpenAI):
    id = client.responses.create(model="up/client-text", input=QUESTION).id
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_nobody")


def test_a_background_response_can_be_deleted_while_it_runs(client: openai.OpenAI, endless_model: str):
    id = client.responses.create(model=endless_model, input=QUESTION, background=True).id
    client.responses.delete(id)
    assert is_gone(client, id)


# Compaction and counting


def test_a_conversation_goes_on_from_its_compaction(client: openai.OpenAI, upstream: Upstream):
    upstream.replies["summary"] = turn(text("They talked about Paris."))
    compacted = client.responses.compact(model="up/summary", input=user("One.", "Two."))
    assert compacted.object == "response.compaction"
    assert [item.type for item in compacted.output][-1] == "compaction"
    assert compacted.usage.total_tokens == 25
    client.responses.create(model="up/client-text", input=[*compacted.output, *user("Go on.")])
    body = upstream.of("client-text")[-1].body
    assert "They talked about Paris." in str(body["input"])
    assert body["input"][-1]["content"] == "Go on."


def test_a_stored_chain_can_be_compacted(client: openai.OpenAI, upstream: Upstream):
    upstream.replies["summary"] = turn(text("They talked about Paris."))
    first = client.responses.create(model="up/client-text", input="Remember Rome.")
    client.responses.compact(model="up/summary", previous_response_id=first.id)
    asked = str(upstream.of("summary")[-1].body["input"])
    assert "Remember Rome." in asked
    assert "Hello, world." in asked


def test_a_compaction_is_not_a_stored_response(client: openai.OpenAI):
    assert is_gone(client, client.responses.compact(model="up/client-text", input=QUESTION).id)


def test_input_tokens_can_be_counted(client: openai.OpenAI):
    few = client.responses.input_tokens.count(model="demo", input="Hello.")
    many = client.responses.input_tokens.count(model="demo", input="Hello, world. " * 100, tools=[GET_WEATHER])
    assert few.object == "response.input_tokens"
    assert 0 < few.input_tokens < 20 < 200 < many.input_tokens < 1000


def test_counting_counts_what_a_request_continues(client: openai.OpenAI):
    first = client.responses.create(model="up/client-text", input="Hello, world. " * 100)
    asked = {"model": "demo", "input": "Hello."}
    alone = client.responses.input_tokens.count(**asked)
    after = client.responses.input_tokens.count(**asked, previous_response_id=first.id)
    assert after.input_tokens > alone.input_tokens + 200


def test_a_count_that_was_guessed_says_so(client: openai.OpenAI):
    raw = client.responses.input_tokens.with_raw_response.count(model="demo", input="Hello.")
    assert "tokens_estimated" in raw.headers["x-toolwire-notes"]


# Conversations


def test_a_conversation_is_created_changed_and_deleted(client: openai.OpenAI):
    conversation = client.conversations.create(metadata={"a": "b"})
    assert (conversation.object, conversation.metadata) == ("conversation", {"a": "b"})
    assert client.conversations.retrieve(conversation.id) == conversation
    assert client.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.retrieve(conversation.id).metadata == {"c": "d"}
    deleted = client.conversations.delete(conversation.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (conversation.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError) as caught:
        client.conversations.retrieve(conversation.id)
    assert caught.value.code == "conversation_not_found"


def test_items_of_a_conversation_are_added_listed_and_deleted(client: openai.OpenAI):
    conversation = client.conversations.create(items=user("One."))
    added = client.conversations.items.create(conversation.id, items=user("Two.", "Three."))
    assert said(added.data) == ["Two.", "Three."]
    second = client.conversations.items.retrieve(added.data[0].id, conversation_id=conversation.id)
    assert second.to_dict() == added.data[0].to_dict()
    assert client.conversations.items.delete(second.id, conversation_id=conversation.id).id == conversation.id
    assert said(client.conversations.items.list(conversation.id, order="asc", limit=1)) == ["One.", "Three."]
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(second.id, conversation_id=conversation.id)


def test_a_response_continues_its_conversation(client: openai.OpenAI, upstream: Upstream):
    conversation = client.conversations.create(items=user("My name is Ann."))
    for words in ("One.", "Two."):
        response = client.responses.create(model="up/client-text", input=words, conversation=conversation.id)
        assert response.conversation is not None
        assert response.conversation.id == conversation.id
    sent = [item["content"][0]["text"] for item in upstream.of("client-text")[-1].body["input"]]
    assert sent == ["My name is Ann.", "One.", "Hello, world.", "Two."]
    items = client.conversations.items.list(conversation.id, order="asc")
    assert said(items) == [*sent, "Hello, world."]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_runs_in_a_conversation(client: openai.OpenAI, stream: bool):
    conversation = client.conversations.create()
    asked = {"model": "demo", "tools": [GET_WEATHER], "conversation": {"id": conversation.id}, "stream": stream}

    def ask(given: Any) -> Response:
        answer = client.responses.create(**asked, input=given)
        return list(answer)[-1].response if stream else answer

    first = ask(QUESTION)
    assert ask([output_of(first.output[-1].call_id, RESULT)]).output_text == ANSWER
    kinds = [item.type for item in client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output", "message"]


def test_a_turn_that_failed_leaves_its_conversation_as_it_was(client: openai.OpenAI):
    conversation = client.conversations.create(items=user("One."))
    with pytest.raises(openai.APIError):
        client.responses.create(model="up/client-error-middle", input="Two.", conversation=conversation.id)
    assert said(client.conversations.items.list(conversation.id)) == ["One."]


def test_a_conversation_outlives_its_responses(client: openai.OpenAI):
    conversation = client.conversations.create()
    response = client.responses.create(model="up/client-text", input="One.", conversation=conversation.id)
    client.responses.delete(response.id)
    assert said(client.conversations.items.list(conversation.id, order="asc")) == ["One.", "Hello, world."]


def test_a_response_outlives_its_conversation(client: openai.OpenAI):
    conversation = client.conversations.create()
    response = client.responses.create(model="up/client-text", input="One.", conversation=conversation.id)
    client.conversations.delete(conversation.id)
    assert client.responses.retrieve(response.id).output_text == "Hello, world."


def test_a_conversation_that_is_not_there_cannot_be_continued(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="demo", input=QUESTION, conversation="conv_nobody")
    assert (caught.value.param, caught.value.code) == ("conversation", "conversation_not_found")


def test_a_request_continues_a_response_or_a_conversation_not_both(client: openai.OpenAI):
    response = client.responses.create(model="up/client-text", input=QUESTION)
    conversation = client.conversations.create()
    both = {"previous_response_id": response.id, "conversation": conversation.id}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="demo", input=QUESTION, **both)
    assert caught.value.param == "previous_response_id"


def test_calls_that_nobody_answered_do_not_break_a_conversation(client: openai.OpenAI, upstream: Upstream):
    conversation = client.conversations.create()
    asked = {"conversation": conversation.id, "tools": [GET_WEATHER]}
    client.responses.create(model="up/client-one-call", input=QUESTION, **asked)
    response = client.responses.create(model="up/client-text", input="Never mind.", **asked)
    assert response.output_text == "Hello, world."
    sent = upstream.of("client-text")[-1].body["input"]
    assert [item["type"] for item in sent[:3]] == ["message", "function_call", "function_call_output"]


def test_a_turn_that_was_not_to_be_stored_is_in_its_conversation_all_the_same(client: openai.OpenAI):
    conversation = client.conversations.create(items=user("One."))
    response = client.responses.create(model="up/client-text", input="Two.", conversation=conversation.id, store=False)
    assert said(client.conversations.items.list(conversation.id)) == ["Hello, world.", "Two.", "One."]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
