"""State: responses that are kept, continued, replayed, cancelled and deleted, by nobody but their owner."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.test_socket import opened
from tests.support import processes
from tests.support.checked import responses_faults
from tests.support.frames import call, completed, created, rs, stream, text
from tests.support.gateway import (
    Events,
    Gate,
    Gateway,
    Responses,
    backend,
    calls_of,
    error_of,
    good,
    iter_events,
    read_events,
    response_body,
    text_of,
    tool,
)
from tests.support.schemas import event_errors, response_errors
from tests.support.upstream import Hold, Reply, Upstream

FIND = [tool("find", q={"type": "string"})]
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
SAYS_HI = Reply([stream(created(), text("hi"), completed())])
CALLS_FIND = Reply([stream(created(), text("Hm. "), call("c1", "find", '{"q":"x"}', index=1), completed())])
CALLS_TWICE = Reply([stream(created(), call("c1", "find", "{}"), call("c2", "find", "{}", index=1), completed())])
BUSY = Reply([b'{"error":{"message":"Busy."}}'], 503, "application/json")


@pytest.fixture
def api(http: httpx.Client, gateway: Gateway, upstream: Upstream) -> Responses:
    upstream.replies["hi"] = SAYS_HI
    return Responses(http, gateway)


@pytest.fixture(scope="module")
def peculiar(http: httpx.Client, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Responses]:
    """A gateway that keeps little and only on request, is strict about histories, and whose upstream counts tokens."""
    rules = '[store]\ndefault = false\nmax_size = "60KB"\n[tools]\nhistory = "strict"\n'
    table = backend(upstream.url, profile="{ counts_tokens = true }")
    server = Gateway(tmp_path_factory.mktemp("peculiar"), rules + table)
    yield Responses(http, server)
    server.stop()


def output_of(call_id: str, output: str = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def by_socket(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields as a message of a socket has them."""
    return {name: value for name, value in response_body("", **fields).items() if name not in ("model", "input")}


def user(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


def told(upstream: Upstream, model: str) -> list[str]:
    """What the upstream was last given, a word or two for each item."""
    return [brief(item) for item in upstream.of(model)[-1].body["input"]]


def brief(item: dict[str, Any]) -> str:
    match item.get("type", "message"):
        case "message":
            content = item["content"]
            words = content if isinstance(content, str) else "".join(part["text"] for part in content)
            return f"{item['role']}: {words}"
        case "function_call_output" | "custom_tool_call_output":
            return f"output {item['call_id']}: {item['output']}"
        case "function_call" | "custom_tool_call":
            return f"call {item['call_id']}"
        case type:
            return type


def is_sound(events: Events) -> None:
    assert responses_faults(events.frames, done=events.done) == []
    assert [fault for _, data in events.frames for fault in event_errors(data)] == []


def is_missing(response: httpx.Response) -> None:
    status, error = error_of(response)
    assert (status, error["code"]) == (404, "response_not_found")


# Keeping

KEPT = {
    "text": ("demo", {}),
    "calls": ("demo-parallel", {"tools": FIND}),
    "reasoning": ("demo", {"tools": FIND, "input": "Find Paris and Rome."}),
    "refusal": ("demo-refusal", {}),
    "length": ("demo-length", {"tools": FIND}),
    "asked for a lot": ("demo", {"metadata": {"a": "b"}, "temperature": 0.1, "instructions": "Be kind.", "brand_new": 1}),
}  # fmt: skip


@STREAMED
@pytest.mark.parametrize("name", KEPT)
def test_a_response_is_retrieved_as_it_was_received(api, name, streamed):
    model, fields = KEPT[name]
    received = api.ask(model, stream=streamed, **fields)
    assert received["store"] is True
    assert api.retrieve(received["id"]) == received


def test_a_stream_that_failed_is_retrieved_as_it_was_received(api):
    received = api.stream("demo-error-middle").response
    assert received["status"] == "failed"
    assert api.retrieve(received["id"]) == received


@STREAMED
def test_a_response_that_is_not_to_be_stored_is_not_there(api, streamed):
    received = api.ask("demo", stream=streamed, store=False)
    assert received["store"] is False
    is_missing(api.get(received["id"]))


def test_a_setting_turns_storing_off_and_the_request_wins(peculiar):
    usual, wanted = peculiar.create("demo"), peculiar.create("demo", store=True)
    assert (usual["store"], wanted["store"]) == (False, True)
    is_missing(peculiar.get(usual["id"]))
    assert peculiar.retrieve(wanted["id"]) == wanted


def test_a_failure_before_the_first_event_leaves_nothing(api, gateway):
    response = api.post(response_body("demo-error"))
    assert response.status_code == 503
    id = response.headers["x-request-id"]
    gateway.wait_until(lambda: any(line["request_id"] == id for line in gateway.turns()))
    [turn] = [line["turn"] for line in gateway.turns() if line["request_id"] == id]
    is_missing(api.get(f"resp_{turn}"))


def test_a_deleted_response_is_gone_everywhere(api):
    id = api.create("demo", tools=FIND)["id"]
    assert good(api.delete(id)).json() == {"id": id, "object": "response", "deleted": True}
    for response in (
        api.get(id),
        api.get(id, stream="true"),
        api.delete(id),
        api.post({}, f"/{id}/cancel"),
        api.get(f"{id}/input_items"),
        api.submit(id, {"c": "x"}),
    ):
        is_missing(response)
    status, error = error_of(api.post(response_body("demo", previous_response_id=id)))
    assert (status, error["code"]) == (404, "previous_response_not_found")


def test_what_another_response_said_stays_when_one_is_deleted(api, upstream):
    first = api.create("up/hi", "one")
    second = api.create("up/hi", "two", previous_response_id=first["id"])
    api.delete(second["id"])
    api.create("up/hi", "three", previous_response_id=first["id"])
    assert told(upstream, "hi") == ["user: one", "assistant: hi", "user: three"]


# Replaying


@pytest.mark.parametrize("name", KEPT)
def test_a_response_is_replayed_as_a_stream_that_says_the_same(api, name):
    model, fields = KEPT[name]
    received = api.create(model, **fields)
    events = api.replay(received["id"])
    is_sound(events)
    assert events.response == received


def test_a_replay_has_the_events_of_the_stream_it_repeats(api):
    first = api.stream("demo", "Find Paris and Rome.", tools=FIND)
    again = api.replay(first.response["id"])
    assert again.response == first.response
    assert list(dict.fromkeys(again.types)) == list(dict.fromkeys(first.types))


@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_replay_begins_after_the_event_that_the_client_has(api, after):
    id = api.create("demo", "Find Paris and Rome.", tools=FIND)["id"]
    whole, rest = api.replay(id), api.replay(id, starting_after=after)
    assert rest.frames == whole.frames[after + 1 :]
    assert rest.numbers[0] == after + 1
    assert rest.done


def test_a_replay_after_the_last_event_is_only_its_end(api):
    events = api.replay(api.create("demo")["id"], starting_after=1000)
    assert (events.frames, events.done) == ([], True)


@pytest.mark.parametrize("after", ["soon", "-5", "--3", "1.5", "²", ""])
def test_a_replay_from_nonsense_is_refused(api, after):
    status, error = error_of(api.get(api.create("demo")["id"], stream="true", starting_after=after))
    assert (status, error["param"]) == (400, "starting_after")


def test_a_failed_response_is_replayed_with_its_failure(api):
    received = api.stream("demo-error-middle").response
    events = api.replay(received["id"])
    is_sound(events)
    assert events.types[-2:] == ["error", "response.failed"]
    assert events.response["error"]["message"] == received["error"]["message"]
    assert text_of(events.response) == text_of(received)


def test_a_waiting_extended_response_is_replayed_without_a_false_end(api):
    body = response_body("demo", "Find Rome.", tools=FIND)
    waiting = good(api.post(body, x_proxy_responses_events="extended")).json()
    events = api.replay(waiting["id"])
    assert responses_faults(events.frames, done=events.done, extended=True) == []
    assert events.types[-1] == "response.completed", "the turn itself was not cut short"
    assert events.response["incomplete_details"] is None
    assert events.response["output"] == waiting["output"]


def test_a_cancelled_response_can_be_replayed(api, gateway, upstream):
    upstream.replies["endless"] = Reply([stream(created(), text("Once upon")), Hold()])
    id = begin(gateway, response_body("up/endless", stream=True), until="response.output_text.delta").response_id
    assert api.wait_for(id, "cancelled")["status"] == "cancelled"
    events = api.replay(id)
    is_sound(events)
    assert text_of(events.response) == "Once upon"
    assert events.types[-1] != "response.completed"


# The figures of a turn

CALLS_THRICE = Reply(
    [stream(created(), *(call(f"c{place}", "find", "{}", index=place) for place in range(3)), completed())]
)
FIGURES = {
    "x-codex-tool-call-count": "1",
    "x-codex-tool-call-truncated": "true",
    "x-codex-stop-after-tools-mode": "burst",
    "x-toolwire-notes": '[{"code":"call_capped","subject":"c1"},{"code":"call_capped","subject":"c2"}]',
}
CAPPED = {"tools": FIND, "parallel_tool_calls": False}


def figures(headers: httpx.Headers) -> dict[str, str]:
    return {name: headers[name] for name in FIGURES if name in headers}


@pytest.mark.parametrize("way", ["plain", "streamed", "background", "background, streamed"])
def test_what_is_told_of_a_turn_is_kept_with_it(api, upstream, way):
    upstream.replies["figures"] = CALLS_THRICE
    streamed, background = "streamed" in way, "background" in way
    body = response_body("up/figures", stream=streamed, background=background, **CAPPED)
    first = good(api.post(body))
    if streamed:
        events = read_events(first)
        id, received = events.response["id"], events.telemetry
    else:
        id = first.json()["id"]
        assert api.wait_for(id, "completed")["status"] == "completed"
        received = None
        if not background:
            assert figures(first.headers) == FIGURES
    polled = good(api.get(id))
    assert figures(polled.headers) == FIGURES
    assert "toolwire" not in polled.json()
    told = api.replay(id).telemetry
    assert told == {
        "tool_call_count": 1,
        "tool_call_truncated": True,
        "stop_after_tools_mode": "burst",
        "notes": json.loads(FIGURES["x-toolwire-notes"]),
    }
    assert received in (None, told)
    assert api.replay(id, starting_after=1000).telemetry == told
    if background:
        assert figures(good(api.post({}, f"/{id}/cancel")).headers) == FIGURES


def test_what_is_told_of_a_turn_over_a_socket_is_kept_with_it(api, gateway, upstream):
    upstream.replies["figures-socket"] = CALLS_THRICE
    with opened(gateway) as socket:
        response = socket.ask("up/figures-socket", **by_socket(CAPPED)).response
    told = response.pop("toolwire")
    assert told["notes"] == json.loads(FIGURES["x-toolwire-notes"])
    polled = good(api.get(response["id"]))
    assert (figures(polled.headers), polled.json()) == (FIGURES, response)
    assert api.replay(response["id"]).telemetry == told


def test_an_answer_that_is_given_again_tells_the_same(api, upstream):
    upstream.replies["figures-again"] = [CALLS_FIND, CALLS_THRICE]
    first = api.create("up/figures-again", **CAPPED)
    again = [good(api.submit(first["id"], {"c1": "x"})) for _ in range(2)]
    assert [figures(response.headers) for response in again] == [FIGURES, FIGURES]
    assert again[0].json()["id"] == again[1].json()["id"]


def test_a_run_that_goes_on_tells_no_figures_yet(api, gate):
    id = api.create("up/slow", background=True)["id"]
    assert figures(good(api.get(id)).headers) == {}


def test_extended_events_ping_in_a_background_stream_and_are_numbered(api, upstream):
    gate = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
    upstream.replies["pinged"] = Reply(gate)
    body = response_body("up/pinged", stream=True, background=True)
    events = Events()
    headers = {"x-proxy-responses-events": "extended"}
    with api.http.stream("POST", api.url, json=body, headers=headers) as response:
        for frame in iter_events(response, events):
            events.frames.append(frame)
            if len(events.of("ping")) == 2:
                gate.open()
    assert responses_faults(events.frames, done=events.done, extended=True) == []
    assert events.numbers == list(range(len(events.frames)))
    assert [comment for comment in events.comments if comment == "keepalive"] == []
    assert text_of(events.response) == "Once upon"
    assert api.replay(events.response["id"]).frames == events.frames


# Continuing


@STREAMED
def test_a_continued_turn_is_earlier_input_earlier_output_new_input(api, upstream, streamed):
    upstream.replies["chain"] = [CALLS_FIND, SAYS_HI, SAYS_HI]
    first = api.ask("up/chain", "one", stream=streamed, tools=FIND, instructions="Be brief.")
    second = api.ask("up/chain", [output_of("c1"), user("two")], stream=streamed, previous_response_id=first["id"])
    third = api.ask("up/chain", "three", stream=streamed, previous_response_id=second["id"])
    assert told(upstream, "chain") == [
        "user: one", "assistant: Hm. ", "call c1", "output c1: done", "user: two", "assistant: hi", "user: three",
    ]  # fmt: skip
    assert third["previous_response_id"] == second["id"]


@STREAMED
def test_instructions_do_not_carry_over(api, upstream, streamed):
    first = api.ask("up/hi", stream=streamed, instructions="Be brief.")
    second = api.ask("up/hi", stream=streamed, previous_response_id=first["id"])
    assert upstream.of("hi")[-1].body.get("instructions") is None
    assert second["instructions"] is None
    third = api.ask("up/hi", stream=streamed, previous_response_id=second["id"], instructions="Be long.")
    assert upstream.of("hi")[-1].body["instructions"] == third["instructions"] == "Be long."


def test_a_response_can_be_continued_twice(api, upstream):
    root = api.create("up/hi", "root")
    for branch in ("left", "right"):
        api.create("up/hi", branch, previous_response_id=root["id"])
        assert told(upstream, "hi") == ["user: root", "assistant: hi", f"user: {branch}"]


def test_every_backend_has_state(http, start, upstream, tmp_path):
    tape = tmp_path / "tape.jsonl"
    frames = [{"data": json.dumps(event)} for event in events_in(b"".join(SAYS_HI.steps))]
    tape.write_text("\n".join(map(json.dumps, [{"toolwire": 1, "kind": "responses"}, *frames])))
    upstream.replies["hi"] = SAYS_HI
    replay = f'[[backends]]\nname = "again"\nkind = "replay"\nfile = "{tape}"\n'
    api = Responses(http, start(backend(upstream.url) + replay))
    for streamed in (False, True):
        previous: dict[str, str] = {}
        for model in ("demo", "up/hi", "again/x", "up/hi", "demo"):
            response = api.ask(model, f"to {model}", stream=streamed, **previous)
            assert api.retrieve(response["id"]) == response
            previous = {"previous_response_id": response["id"]}
        assert told(upstream, "hi")[-3:] == ["user: to again/x", "assistant: hi", "user: to up/hi"]


def events_in(data: bytes) -> list[Any]:
    lines = data.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_a_tool_loop_needs_nothing_but_the_outputs(api):
    first = api.create("demo", "Find Paris.", tools=FIND)
    [made] = calls_of(first)
    second = api.create("demo", [output_of(made["call_id"], "sunny")], tools=FIND, previous_response_id=first["id"])
    assert text_of(second) == "According to find: sunny"


def test_sealed_reasoning_goes_back_to_where_it_came_from(api, upstream):
    signed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "signed"}
    thinks = stream(rs("output_item.done", output_index=0, item=signed), call("c1", "find", "{}", index=1))
    upstream.replies["thinks"] = [Reply([stream(created(), thinks, completed())]), SAYS_HI]
    first = api.create("up/thinks", tools=FIND)
    api.create("up/thinks", [output_of("c1")], tools=FIND, previous_response_id=first["id"])
    reasoning = upstream.of("thinks")[-1].body["input"][1]
    assert (reasoning["type"], reasoning["encrypted_content"]) == ("reasoning", "signed")


@pytest.mark.parametrize("id", ["resp_nobody", "x", "conv_1"])
@STREAMED
def test_an_unknown_response_cannot_be_continued(api, id, streamed):
    status, error = error_of(api.post(response_body("demo", stream=streamed, previous_response_id=id)))
    assert (status, error["code"], error["param"]) == (404, "previous_response_not_found", "previous_response_id")
    assert id in error["message"]


def test_a_response_that_was_not_stored_cannot_be_continued(api):
    first = api.create("demo", store=False)
    status, error = error_of(api.post(response_body("demo", previous_response_id=first["id"])))
    assert (status, error["code"]) == (404, "previous_response_not_found")


@STREAMED
def test_an_output_whose_call_is_not_in_the_chain_is_a_400_that_names_it(api, streamed):
    first = api.create("demo")
    body = response_body("demo", [output_of("call_strange")], stream=streamed, previous_response_id=first["id"])
    status, error = error_of(api.post(body))
    assert (status, error["param"]) == (400, "input")
    assert "call_strange" in error["message"]


def test_that_holds_when_the_chain_is_empty(api, upstream):
    upstream.replies["mute"] = Reply([stream(created(), completed())])
    first = api.create("up/mute", [])
    assert first["output"] == []
    status, error = error_of(
        api.post(response_body("up/mute", [output_of("call_strange")], previous_response_id=first["id"]))
    )
    assert (status, "call_strange" in error["message"]) == (400, True)


@pytest.mark.parametrize("rule", ["repair", "strict"])
def test_that_holds_whatever_the_rule_for_histories(api, peculiar, upstream, rule):
    upstream.replies["calls"] = CALLS_FIND
    asked = api if rule == "repair" else peculiar
    first = asked.create("up/calls", tools=FIND, store=True)
    both = [output_of("c1"), output_of("call_strange")]
    status, error = error_of(asked.post(response_body("up/calls", both, previous_response_id=first["id"])))
    assert (status, error["param"], "call_strange" in error["message"]) == (400, "input", True)


def test_an_output_that_was_given_already_is_not_taken_again(api, upstream):
    upstream.replies["calls"] = [CALLS_FIND, SAYS_HI]
    first = api.create("up/calls", tools=FIND)
    second = api.create("up/calls", [output_of("c1")], previous_response_id=first["id"])
    status, error = error_of(api.post(response_body("up/calls", [output_of("c1")], previous_response_id=second["id"])))
    assert (status, "c1" in error["message"]) == (400, True)


def test_an_output_that_is_missing_is_filled_in_with_a_note(api, upstream):
    upstream.replies["calls"] = CALLS_FIND
    first = api.create("up/calls", tools=FIND)
    response = good(api.post(response_body("up/calls", "Never mind.", previous_response_id=first["id"])))
    assert json.loads(response.headers["x-toolwire-notes"]) == [{"code": "result_missing", "subject": "c1"}]
    assert told(upstream, "calls")[-2].startswith("output c1: Error")


def test_an_output_that_is_missing_is_refused_where_histories_must_be_whole(peculiar, upstream):
    upstream.replies["calls"] = CALLS_FIND
    first = peculiar.create("up/calls", tools=FIND, store=True)
    status, error = error_of(peculiar.post(response_body("up/calls", "Never mind.", previous_response_id=first["id"])))
    assert (status, error["param"], "c1" in error["message"]) == (400, "input", True)


def test_an_orphan_output_without_a_chain_is_left_out_with_a_note(api, upstream):
    response = good(api.post(response_body("up/hi", [output_of("call_strange"), user("go on")])))
    assert json.loads(response.headers["x-toolwire-notes"]) == [{"code": "result_dropped", "subject": "call_strange"}]
    assert told(upstream, "hi") == ["user: go on"]


# References


def test_a_reference_stands_for_the_item_it_names(api, upstream):
    first = api.create("demo", "one")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    api.create("up/hi", [user("two"), reference])
    assert told(upstream, "hi") == ["user: two", f"assistant: {text_of(first)}"]


def test_a_reference_to_what_is_in_the_chain_is_not_said_twice(api, upstream):
    first = api.create("up/hi", "one")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    api.create("up/hi", [reference, user("two")], previous_response_id=first["id"])
    assert told(upstream, "hi") == ["user: one", "assistant: hi", "user: two"]


def test_a_reference_to_nothing_is_a_404_that_names_it(api):
    status, error = error_of(api.post(response_body("demo", [{"type": "item_reference", "id": "msg_nobody"}])))
    assert (status, error["param"], "msg_nobody" in error["message"]) == (404, "input[0]", True)


# Input items


def test_the_input_of_a_response_is_listed_with_ids_latest_first(api):
    given = [user("one"), {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "two"}]}]
    id = api.create("demo", given)["id"]
    page = good(api.get(f"{id}/input_items")).json()
    assert (page["object"], page["has_more"], len(page["data"])) == ("list", False, 2)
    assert [brief(item) for item in page["data"]] == ["user: two", "user: one"]
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][1]["id"])
    for item in page["data"]:
        assert (item["type"], item["role"], item["status"]) == ("message", "user", "completed")
        assert item["content"][0]["type"] == "input_text"


def test_a_plain_string_is_listed_as_a_message(api):
    page = api.get(f"{api.create('demo', 'Hello.')['id']}/input_items").json()
    assert [brief(item) for item in page["data"]] == ["user: Hello."]


def test_an_item_keeps_the_id_it_came_with(api):
    given = [{"type": "message", "id": "msg_mine", "role": "user", "content": "one"}]
    assert api.get(f"{api.create('demo', given)['id']}/input_items").json()["first_id"] == "msg_mine"


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_give_every_item_once_in_order(api, order, limit):
    words = [str(number) for number in range(5)]
    id = api.create("demo", [user(word) for word in words])["id"]
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = good(api.get(f"{id}/input_items", limit=limit, order=order, **after)).json()
        seen += [brief(item).removeprefix("user: ") for item in page["data"]]
        if not page["has_more"]:
            break
        assert len(page["data"]) == limit
        after = {"after": page["last_id"]}
    assert seen == (words if order == "asc" else words[::-1])


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"limit": "x"}, "limit"), ({"order": "up"}, "order"), ({"after": "msg_nobody"}, "after")],
)  # fmt: skip
def test_a_page_that_cannot_be_is_a_400(api, query, param):
    status, error = error_of(api.get(f"{api.create('demo')['id']}/input_items", **query))
    assert (status, error["param"]) == (400, param)


# Submitting tool outputs


@STREAMED
def test_submitted_outputs_continue_the_response(api, streamed):
    first = api.create("demo", "Find Paris.", tools=FIND)
    [made] = calls_of(first)
    response = good(api.submit(first["id"], {made["call_id"]: "sunny"}, stream=streamed))
    if streamed:
        events = read_events(response)
        is_sound(events)
        second = events.response
    else:
        second = response.json()
        assert response_errors(second) == []
    assert text_of(second) == "According to find: sunny"
    assert second["previous_response_id"] == first["id"]
    assert second["id"] != first["id"]
    assert api.retrieve(second["id"]) == second
    assert "required_action" not in api.retrieve(first["id"])


@pytest.mark.parametrize("name", ["tool_call_id", "call_id"])
def test_the_call_is_named_in_either_spelling(api, upstream, name):
    upstream.replies["calls"] = [CALLS_FIND, SAYS_HI]
    first = api.create("up/calls", tools=FIND, instructions="Be brief.")
    good(api.post({"tool_outputs": [{name: "c1", "output": "x"}]}, f"/{first['id']}/submit_tool_outputs"))
    assert told(upstream, "calls") == ["user: Go.", "assistant: Hm. ", "call c1", "output c1: x"]
    body = upstream.of("calls")[-1].body
    assert (body["tools"][0]["name"], body["instructions"]) == ("find", "Be brief.")


@pytest.mark.parametrize(
    ("choice", "kept"),
    [("required", False), ({"type": "function", "name": "find"}, False), ("auto", True)],
    ids=["required", "named", "auto"],
)
def test_a_call_that_was_forced_is_not_forced_again(api, upstream, choice, kept):
    upstream.replies["calls"] = [CALLS_FIND, SAYS_HI]
    first = api.create("up/calls", tools=FIND, tool_choice=choice)
    good(api.submit(first["id"], {"c1": "x"}))
    assert ("tool_choice" in upstream.of("calls")[-1].body) == kept


def test_outputs_are_put_in_the_order_of_the_calls(api, upstream):
    upstream.replies["calls"] = [CALLS_TWICE, SAYS_HI]
    first = api.create("up/calls", tools=FIND)
    good(api.submit(first["id"], {"c2": "two", "c1": "one"}))
    assert told(upstream, "calls")[-2:] == ["output c1: one", "output c2: two"]


@pytest.mark.parametrize(
    ("output", "sent"),
    [
        ("text", "text"),
        ("", ""),
        ({"a": [1, 2]}, '{"a":[1,2]}'),
        (5, "5"),
        (False, "false"),
        ([1, 2], "[1,2]"),
        ([{"a": 1}], '[{"a":1}]'),
        ([{"type": "input_text", "text": "part"}], [{"type": "input_text", "text": "part"}]),
    ],
    ids=json.dumps,
)
def test_an_output_is_a_text_or_parts_and_any_other_json_its_own_text(api, upstream, output, sent):
    upstream.replies["calls"] = [CALLS_FIND, SAYS_HI]
    first = api.create("up/calls", tools=FIND)
    good(api.submit(first["id"], {"c1": output}))
    assert upstream.of("calls")[-1].body["input"][-1]["output"] == sent


def test_the_output_of_a_custom_tool_has_its_own_type(api, upstream):
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "run", "input": "1+1"}
    runs = rs("output_item.done", output_index=0, item=item)
    upstream.replies["custom"] = [Reply([stream(created(), runs, completed())]), SAYS_HI]
    first = api.create("up/custom", tools=[{"type": "custom", "name": "run"}])
    assert first["required_action"]["submit_tool_outputs"]["tool_calls"] == [
        {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "1+1"}}
    ]
    good(api.submit(first["id"], {"c1": "2"}))
    assert upstream.of("custom")[-1].body["input"][-1]["type"] == "custom_tool_call_output"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tool_outputs": [{"tool_call_id": "c1", "output": "x"}]}, "c2"),
        ({"tool_outputs": []}, "c1"),
        ({"tool_outputs": [{"tool_call_id": "c1", "output": "x"}, {"tool_call_id": "c3", "output": "x"}]}, "c3"),
        ({"tool_outputs": [{"call_id": "c9", "output": "x"}]}, "c9"),
        ({"tool_outputs": [{"call_id": "c1", "output": "x"}, {"call_id": "c1", "output": "y"}]}, "c1"),
        ({"tool_outputs": [{"output": "x"}]}, "tool_outputs[0].tool_call_id"),
        ({"tool_outputs": [{"tool_call_id": "c1"}]}, "tool_outputs[0].output"),
        ({"tool_outputs": "x"}, "tool_outputs"),
        ({}, "tool_outputs"),
        ([], ""),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_outputs_that_do_not_fit_are_a_400_that_says_which(api, upstream, body, said):
    upstream.replies["calls"] = CALLS_TWICE
    first = api.create("up/calls", tools=FIND)
    before = len(upstream.of("calls"))
    status, error = error_of(api.post(body, f"/{first['id']}/submit_tool_outputs"))
    assert (status, said in error["message"]) == (400, True)
    assert len(upstream.of("calls")) == before
    assert api.retrieve(first["id"]) == first, "a refused submission changes nothing"


def test_outputs_for_a_response_without_calls_are_a_400(api):
    assert api.submit(api.create("demo")["id"], {"c1": "x"}).status_code == 400


def test_outputs_for_a_response_that_is_not_there_are_a_404(api):
    is_missing(api.submit("resp_nobody", {"c1": "x"}))
    is_missing(api.submit(api.create("demo", tools=FIND, store=False)["id"], {"c1": "x"}))


def test_outputs_submitted_again_give_the_same_continuation(api, upstream):
    upstream.replies["calls"] = [CALLS_FIND, SAYS_HI]
    first = api.create("up/calls", tools=FIND)
    second = good(api.submit(first["id"], {"c1": "x"})).json()
    asked = len(upstream.of("calls"))
    assert good(api.submit(first["id"], {"c1": "x"})).json() == second
    events = read_events(good(api.submit(first["id"], {"c1": "x"}, stream=True)))
    is_sound(events)
    assert events.response == second
    assert len(upstream.of("calls")) == asked


def is_conflict(response: httpx.Response, continuation: str) -> None:
    status, error = error_of(response)
    assert (status, error["code"], error["param"]) == (409, "outputs_already_submitted", "tool_outputs")
    assert continuation in error["message"]


@STREAMED
def test_other_outputs_for_a_response_that_has_its_outputs_are_a_409(api, upstream, streamed):
    upstream.replies["calls"] = [CALLS_TWICE, SAYS_HI]
    first = api.create("up/calls", tools=FIND)["id"]
    second = good(api.submit(first, {"c1": "x", "c2": [{"type": "input_text", "text": "y"}]})).json()
    asked = len(upstream.of("calls"))
    for other in ({"c1": "x", "c2": "y"}, {"c1": "z", "c2": [{"type": "input_text", "text": "y"}]}):
        is_conflict(api.submit(first, other, stream=streamed), second["id"])
    same = good(api.submit(first, {"c2": [{"text": "y", "type": "input_text"}], "c1": "x"}, stream=streamed))
    assert (read_events(same).response if streamed else same.json()) == second
    assert len(upstream.of("calls")) == asked


def test_outputs_that_are_not_whole_are_a_400_also_the_second_time(api, upstream):
    upstream.replies["calls"] = [CALLS_TWICE, SAYS_HI]
    first = api.create("up/calls", tools=FIND)["id"]
    good(api.submit(first, {"c1": "x", "c2": "y"}))
    for outputs in ({"c1": "x"}, {"c1": "x", "c2": "y", "c3": "z"}):
        assert api.submit(first, outputs).status_code == 400


@pytest.mark.parametrize("named", ["call_id", "tool_call_id", "item"])
def test_outputs_that_came_with_a_request_are_compared_too(api, upstream, named):
    upstream.replies["calls"] = [CALLS_FIND, SAYS_HI]
    first = api.create("up/calls", tools=FIND)
    [made] = calls_of(first)
    given = {"call_id": made["id"]} if named == "item" else {named: "c1"}
    second = api.create(
        "up/calls",
        [{"type": "function_call_output", **given, "output": "x"}, user("And?")],
        previous_response_id=first["id"],
    )
    assert good(api.submit(first["id"], {"c1": "x"})).json() == second
    is_conflict(api.submit(first["id"], {"c1": "y"}), second["id"])


def test_other_outputs_are_taken_once_the_continuation_is_deleted(api, upstream):
    upstream.replies["calls"] = [CALLS_FIND, SAYS_HI]
    first = api.create("up/calls", tools=FIND)["id"]
    good(api.delete(good(api.submit(first, {"c1": "x"})).json()["id"]))
    good(api.submit(first, {"c1": "y"}))
    assert told(upstream, "calls")[-1] == "output c1: y"


def test_of_different_outputs_submitted_at_once_the_first_count(gateway, api, upstream):
    gate = Gate(stream(created(), text("hi")), after=(completed(),))
    upstream.replies["calls"] = [CALLS_FIND, Reply(gate)]
    first = api.create("up/calls", tools=FIND)["id"]
    asked = len(upstream.of("calls"))
    got: dict[str, list[httpx.Response]] = {"x": [], "y": []}

    def submit(output: str, streamed: bool) -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            got[output].append(Responses(client, gateway).submit(first, {"c1": output}, stream=streamed))

    threads = [threading.Thread(target=submit, args=("xy"[n % 2], n % 4 < 2)) for n in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(upstream.of("calls")) > asked)
    gate.open()
    for thread in threads:
        thread.join()
    statuses = {output: [response.status_code for response in responses] for output, responses in got.items()}
    assert sorted(statuses.values()) == [[200] * 4, [409] * 4]
    assert len(upstream.of("calls")) == asked + 1


def test_other_outputs_while_the_continuation_runs_in_the_background_are_a_409(api, upstream):
    gate = Gate(stream(created(), text("hi")), after=(completed(),))
    upstream.replies["calls"] = [CALLS_FIND, Reply(gate)]
    first = api.create("up/calls", tools=FIND, background=True)["id"]
    api.wait_for(first, "completed")
    second = good(api.submit(first, {"c1": "x"})).json()["id"]
    is_conflict(api.submit(first, {"c1": "y"}), second)
    gate.open()
    api.wait_for(second, "completed")
    is_conflict(api.submit(first, {"c1": "y"}), second)


def test_outputs_submitted_by_many_at_once_run_once(gateway, api, upstream):
    gate = Gate(stream(created(), text("hi")), after=(completed(),))
    upstream.replies["calls"] = [CALLS_FIND, Reply(gate)]
    first = api.create("up/calls", tools=FIND)
    asked = len(upstream.of("calls"))
    got: list[Any] = []

    def submit(streamed: bool) -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            response = good(Responses(client, gateway).submit(first["id"], {"c1": "x"}, stream=streamed))
            got.append(read_events(response).response if streamed else response.json())

    threads = [threading.Thread(target=submit, args=(number % 2 == 1,)) for number in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(upstream.of("calls")) > asked)
    gate.open()
    for thread in threads:
        thread.join()
    assert len(got) == 6
    assert all(response == got[0] for response in got)
    assert len(upstream.of("calls")) == asked + 1


def test_outputs_submitted_again_while_the_continuation_runs_in_the_background_run_once(api, upstream):
    gate = Gate(stream(created(), text("hi")), after=(completed(),))
    upstream.replies["calls"] = [CALLS_FIND, Reply(gate)]
    first = api.create("up/calls", tools=FIND, background=True)["id"]
    api.wait_for(first, "completed")
    asked = len(upstream.of("calls"))
    second, again = (good(api.submit(first, {"c1": "x"})).json()["id"] for _ in range(2))
    gate.open()
    assert again == second
    assert text_of(api.wait_for(second, "completed")) == "hi"
    assert len(upstream.of("calls")) == asked + 1


def test_outputs_can_be_submitted_again_when_the_continuation_failed(api, upstream):
    upstream.replies["calls"] = [CALLS_FIND, BUSY, SAYS_HI]
    first = api.create("up/calls", tools=FIND)
    assert api.submit(first["id"], {"c1": "x"}).status_code == 503
    assert api.retrieve(first["id"]) == first
    assert text_of(good(api.submit(first["id"], {"c1": "x"})).json()) == "hi"


def test_outputs_can_be_submitted_again_by_a_client_that_left(api, upstream):
    endless = Reply([stream(created(), text("Once upon")), Hold()])
    upstream.replies["calls"] = [CALLS_FIND, endless, SAYS_HI]
    upstream.gone.clear()
    first = api.create("up/calls", tools=FIND)
    body = {"tool_outputs": [{"call_id": "c1", "output": "x"}], "stream": True}
    with httpx.Client(trust_env=False, timeout=120) as client:
        with client.stream("POST", f"{api.url}/{first['id']}/submit_tool_outputs", json=body) as response:
            for name, _ in iter_events(response, Events()):
                if name == "response.output_text.delta":
                    break
    assert upstream.gone.wait(60)
    assert text_of(good(api.submit(first["id"], {"c1": "x"})).json()) == "hi"


def test_only_outputs_end_the_waiting(api, upstream):
    upstream.replies["calls"] = [CALLS_FIND, SAYS_HI]
    first = api.create("up/calls", tools=FIND)
    api.create("up/calls", "What is a function_call_output?", previous_response_id=first["id"])
    assert api.retrieve(first["id"]) == first
    continued = good(api.submit(first["id"], {"c1": "x"})).json()
    assert told(upstream, "calls")[-1] == "output c1: x"
    assert continued["previous_response_id"] == first["id"]


# Background


def wait_until(condition: Any, seconds: float = 60) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to that")


class Begun(Events):
    """The beginning of a stream whose client has left."""

    @property
    def response_id(self) -> str:
        return self.frames[0][1]["response"]["id"]


def begin(gateway: Gateway, body: dict[str, Any], until: str) -> Begun:
    """Read a stream up to this event, and leave."""
    begun = Begun()
    with httpx.Client(trust_env=False, timeout=120) as client:
        with client.stream("POST", f"{gateway.base_url}/responses", json=body) as response:
            assert response.status_code == 200, response.read()
            for frame in iter_events(response, begun):
                begun.frames.append(frame)
                if frame[0] == until:
                    break
    return begun


@pytest.fixture
def gate(upstream: Upstream) -> Iterator[Gate]:
    """The turn of `up/slow`, which stops after `Once ` until the gate is opened."""
    gate = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
    upstream.replies["slow"] = Reply(gate)
    upstream.gone.clear()
    yield gate
    gate.open()


def test_a_background_response_is_queued_then_runs_then_is_done(api, gate):
    queued = api.create("up/slow", background=True)
    assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
    assert response_errors(queued) == []
    running = api.wait_for(queued["id"], "in_progress")
    assert running["status"] == "in_progress"
    assert response_errors(running) == []
    gate.open()
    done = api.wait_for(queued["id"], "completed")
    assert (done["status"], text_of(done)) == ("completed", "Once upon")
    assert response_errors(done) == []


def test_a_background_stream_tells_all_of_it_and_is_replayed_letter_by_letter(api):
    events = api.stream("demo", "Find Paris and Rome.", tools=FIND, background=True)
    is_sound(events)
    assert events.types[:3] == ["response.created", "response.queued", "response.in_progress"]
    id = events.response["id"]
    assert api.replay(id).frames == events.frames
    assert api.replay(id, starting_after=5).frames == events.frames[6:]
    assert api.retrieve(id) == events.response


def test_a_background_stream_goes_on_when_its_client_leaves(api, gateway, upstream, gate):
    begun = begin(gateway, response_body("up/slow", stream=True, background=True), "response.output_text.delta")
    for _ in range(20):  # the gateway has seen by then that the client has left
        assert api.get(begun.response_id).status_code == 200
    assert not upstream.gone.is_set()
    assert api.get(begun.response_id).json()["status"] == "in_progress"
    gate.open()
    done = api.wait_for(begun.response_id, "completed", "cancelled", "failed")
    assert (done["status"], text_of(done)) == ("completed", "Once upon")
    assert api.replay(begun.response_id).frames[: len(begun.frames)] == begun.frames


def test_a_client_comes_back_for_the_rest_while_it_runs(api, gateway, gate):
    begun = begin(gateway, response_body("up/slow", stream=True, background=True), "response.output_text.delta")
    url = f"{api.url}/{begun.response_id}"
    rest = Events()
    with api.http.stream("GET", url, params={"stream": "true", "starting_after": begun.numbers[-2]}) as response:
        for frame in iter_events(response, rest):
            rest.frames.append(frame)
            gate.open()
    assert rest.frames[0] == begun.frames[-1]
    begun.frames += rest.frames[1:]
    begun.done = rest.done
    is_sound(begun)
    assert text_of(begun.response) == "Once upon"


def test_two_clients_follow_the_same_run(api, gateway, gate):
    id = api.create("up/slow", background=True)["id"]
    got: list[Events] = []

    def follow() -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            got.append(Responses(client, gateway).replay(id))

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join()
    assert got[0].frames == got[1].frames
    is_sound(got[0])


def wait_for_text(api: Responses, id: str) -> None:
    """Follow a running response until it says something."""
    with api.http.stream("GET", f"{api.url}/{id}", params={"stream": "true"}) as response:
        assert any(name == "response.output_text.delta" for name, _ in iter_events(response, Events()))


def test_a_background_response_can_be_cancelled(api, upstream, gate):
    id = api.create("up/slow", background=True)["id"]
    wait_for_text(api, id)
    cancelled = good(api.post({}, f"/{id}/cancel")).json()
    assert (cancelled["status"], cancelled["error"]) == ("cancelled", None)
    assert upstream.gone.wait(60)
    assert api.retrieve(id) == cancelled
    assert good(api.post({}, f"/{id}/cancel")).json() == cancelled, "once more changes nothing"
    assert response_errors(cancelled) == []


def test_a_cancelled_background_response_is_logged_as_cancelled(api, gateway, gate):
    id = api.create("up/slow", background=True)["id"]
    wait_for_text(api, id)
    good(api.post({}, f"/{id}/cancel"))

    def logged() -> list[dict[str, Any]]:
        return [line for line in gateway.turns() if f"resp_{line['turn']}" == id]

    wait_until(logged)
    assert (logged()[0]["outcome"], logged()[0]["error"]) == ("cancelled", "cancelled")


def test_whoever_follows_a_cancelled_response_is_told(api, gateway, gate):
    id = begin(
        gateway, response_body("up/slow", stream=True, background=True), "response.output_text.delta"
    ).response_id
    got: list[Events] = []

    def follow() -> None:
        with httpx.Client(trust_env=False, timeout=120) as client:
            got.append(Responses(client, gateway).replay(id))

    thread = threading.Thread(target=follow)
    thread.start()
    good(api.post({}, f"/{id}/cancel"))
    thread.join()
    is_sound(got[0])
    assert got[0].types[-1] != "response.completed"


def test_a_finished_background_response_cannot_be_cancelled_any_more(api):
    done = api.stream("demo", background=True).response
    assert good(api.post({}, f"/{done['id']}/cancel")).json() == done


def test_a_response_that_is_not_in_the_background_cannot_be_cancelled(api):
    response = api.create("demo")
    status, error = error_of(api.post({}, f"/{response['id']}/cancel"))
    assert (status, error["code"]) == (400, "not_cancellable")
    assert api.retrieve(response["id"]) == response


def test_a_running_response_that_is_deleted_is_stopped(api, upstream, gate):
    id = api.create("up/slow", background=True)["id"]
    wait_for_text(api, id)
    good(api.delete(id))
    assert upstream.gone.wait(60)
    is_missing(api.get(id))


@pytest.mark.parametrize("model", ["demo-error", "demo-error-middle", "demo-cut"])
def test_a_background_response_that_fails_says_so(api, model):
    id = api.create(model, background=True)["id"]
    failed = api.wait_for(id, "failed")
    assert failed["status"] == "failed"
    assert failed["error"]["message"]
    assert response_errors({**failed, "error": None}) == []  # Codex has codes that OpenAI's schema has not
    events = api.replay(id)
    assert responses_faults(events.frames, done=events.done) == []
    assert events.types[-2:] == ["error", "response.failed"]


def test_a_background_response_that_calls_tools_is_continued_like_any_other(api):
    first = api.create("demo", "Find Paris.", tools=FIND, background=True)
    waiting = api.wait_for(first["id"], "completed")
    [made] = calls_of(waiting)
    second = good(api.submit(first["id"], {made["call_id"]: "sunny"})).json()
    assert text_of(api.wait_for(second["id"], "completed")) == "According to find: sunny"


def test_a_response_that_is_still_running_cannot_be_continued_yet(api, gate):
    id = api.create("up/slow", background=True)["id"]
    status, error = error_of(api.post(response_body("up/hi", previous_response_id=id)))
    assert status in (400, 409)
    assert id in error["message"]


def test_a_background_turn_is_logged_and_counted_once(gateway, api):
    name = 'toolwire_turns_total{backend="demo",dialect="responses",status="200"}'

    def counted() -> float:
        lines = api.http.get(gateway.url + "/metrics").text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)

    before = counted()
    background, usual = (api.stream("demo", **fields).response["id"] for fields in ({"background": True}, {}))

    def logged_for(id: str) -> list[dict[str, Any]]:
        return [line for line in gateway.turns() if f"resp_{line['turn']}" == id]

    wait_until(lambda: logged_for(usual))
    logged = logged_for(background)
    assert len(logged) == 1
    assert (logged[0]["reason"], logged[0]["backend"]) == ("stop", "demo")
    assert counted() == before + 2


class Ended:
    """What the clients of a gateway had seen when it was asked to end, and what is left of it afterwards."""

    def __init__(self, folder: Path, upstream: Upstream) -> None:
        finishing = Gate(stream(created(), text("Once ")), after=(stream(text("upon"), completed()),))
        upstream.replies["finishing"] = Reply(finishing)
        upstream.replies["never"] = Reply([stream(created(), text("Once ")), Hold()])
        config = '[server]\ndrain = 1\n[store]\nurl = "sqlite:kept.db"\n' + backend(upstream.url)
        first = Gateway(folder, config)
        with httpx.Client(trust_env=False, timeout=120) as client:
            api = Responses(client, first)
            self.finished, self.broken_off = (
                api.create(model, background=True)["id"] for model in ("up/finishing", "up/never")
            )
            for id in (self.finished, self.broken_off):
                api.wait_for(id, "in_progress")
        self.stream = Events()
        begun = threading.Event()
        reader = threading.Thread(target=self._read, args=(first, begun))
        reader.start()
        assert begun.wait(60)
        first.process.terminate()
        finishing.open()
        self.code = first.process.wait(120)  # `stop` would send a second signal, which ends it at once
        first.stop()
        reader.join(90)
        self.again = Gateway(folder, config)

    def _read(self, gateway: Gateway, begun: threading.Event) -> None:
        body = response_body("up/never", stream=True)
        with httpx.Client(trust_env=False, timeout=120) as client:
            with client.stream("POST", f"{gateway.base_url}/responses", json=body) as response:
                for name, data in iter_events(response, self.stream):
                    self.stream.frames.append((name, data))
                    if name == "response.output_text.delta":
                        begun.set()


@pytest.fixture(scope="module")
def ended(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    ended = Ended(tmp_path_factory.mktemp("ended"), upstream)
    yield ended
    ended.again.stop()


def test_the_end_of_the_gateway_waits_for_what_runs_in_the_background(ended, http):
    assert ended.code == 0
    kept = Responses(http, ended.again).retrieve(ended.finished)
    assert (kept["status"], text_of(kept)) == ("completed", "Once upon")


def test_what_the_end_of_the_gateway_cannot_wait_for_has_failed(ended, http):
    kept = Responses(http, ended.again).retrieve(ended.broken_off)
    assert kept["status"] == "failed"
    assert "shutting down" in kept["error"]["message"]


def test_a_stream_that_the_end_of_the_gateway_breaks_off_is_kept_as_failed(ended, http):
    is_sound(ended.stream)
    assert ended.stream.of("error")[0]["code"] == "shutting_down"
    assert Responses(http, ended.again).retrieve(ended.stream.response["id"]) == ended.stream.response


# Compaction


def test_a_compaction_is_one_opaque_item(api, upstream):
    upstream.replies["sums-up"] = Reply([stream(created(), text("They said hello."), completed(usage={"input_tokens": 9, "output_tokens": 4}))])  # fmt: skip
    compacted = good(api.post(response_body("up/sums-up", [user("Hello."), user("Hello?")]), "/compact")).json()
    assert compacted["object"] == "response.compaction"
    [item] = compacted["output"]
    assert item["type"] == "compaction"
    assert "hello" not in item["encrypted_content"]
    assert compacted["usage"]["total_tokens"] == 13
    assert isinstance(compacted["created_at"], int)
    assert told(upstream, "sums-up")[:2] == ["user: Hello.", "user: Hello?"]
    is_missing(api.get(compacted["id"]))


def test_a_compaction_is_expanded_again_for_any_backend(api, upstream):
    upstream.replies["sums-up"] = Reply([stream(created(), text("They said hellö 東京."), completed())])
    window = good(api.post(response_body("up/sums-up", "Hello."), "/compact")).json()["output"]
    first = api.create("up/hi", [*window, user("Go on.")])
    summary, question = told(upstream, "hi")
    assert "They said hellö 東京." in summary
    assert question == "user: Go on."
    api.create("up/hi", "And on.", previous_response_id=first["id"])
    assert told(upstream, "hi")[0] == summary
    assert "They said hellö" in text_of(api.create("demo", window))


def test_a_whole_chain_can_be_compacted(api, upstream):
    first = api.create("up/hi", "one")
    good(api.post(response_body("up/hi", "two", previous_response_id=first["id"]), "/compact"))
    assert told(upstream, "hi")[:3] == ["user: one", "assistant: hi", "user: two"]


def test_nothing_is_streamed_called_or_kept_by_a_compaction(api, upstream):
    body = response_body("up/hi", tools=FIND, stream=True, store=True, background=True, tool_choice="required")
    compacted = good(api.post(body, "/compact")).json()
    assert compacted["object"] == "response.compaction"
    sent = upstream.of("hi")[-1].body
    assert not sent.get("tools")
    assert not sent.get("tool_choice")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [({"input": "x"}, 400, "model"), (response_body("nobody"), 404, "model"), (response_body("demo", previous_response_id="resp_x"), 404, "previous_response_id")],
)  # fmt: skip
def test_a_compaction_that_cannot_be_is_an_error(api, body, status, param):
    found, error = error_of(api.post(body, "/compact"))
    assert (found, error["param"]) == (status, param)


def test_a_model_without_a_summary_is_an_error(api, upstream):
    upstream.replies["mute"] = Reply([stream(created(), completed())])
    assert error_of(api.post(response_body("up/mute"), "/compact"))[0] == 502


def test_a_compaction_that_was_tampered_with_is_a_400(api):
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "toolwire.1.***"}
    status, error = error_of(api.post(response_body("demo", [item])))
    assert (status, error["param"]) == (400, "input[0].encrypted_content")


def test_a_compaction_of_the_upstreams_own_goes_back_to_it_as_it_is(api, upstream):
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "theirs"}
    api.create("up/hi", [item, user("Go on.")])
    assert upstream.of("hi")[-1].body["input"][0] == item


# Counting tokens


def tokens(api: Responses, body: dict[str, Any]) -> int:
    response = good(api.post(body, "/input_tokens")).json()
    assert response["object"] == "response.input_tokens"
    return response["input_tokens"]


def test_the_tokens_of_an_input_are_estimated_with_a_note(api):
    response = good(api.post(response_body("demo", "Hello."), "/input_tokens"))
    assert json.loads(response.headers["x-toolwire-notes"]) == [{"code": "tokens_estimated"}]
    assert 0 < response.json()["input_tokens"] < 50
    assert tokens(api, response_body("demo", "Hello. " * 1000)) > 500
    assert tokens(api, response_body("demo", "Hello.", tools=FIND, instructions="Be brief. " * 100)) > 200
    assert tokens(api, {"model": "demo"}) >= 0


def test_the_tokens_of_a_chain_are_counted_with_it(api):
    first = api.create("demo", "word " * 1000)
    alone = tokens(api, response_body("demo", "more"))
    assert tokens(api, response_body("demo", "more", previous_response_id=first["id"])) > alone + 1000
    body = response_body("demo", previous_response_id="resp_x")
    assert error_of(api.post(body, "/input_tokens"))[1]["code"] == "previous_response_not_found"


def test_a_backend_that_counts_is_asked(peculiar, upstream):
    upstream.replies["counts"] = Reply(
        [b'{"object":"response.input_tokens","input_tokens":42}'], 200, "application/json"
    )
    response = good(peculiar.post(response_body("up/counts"), "/input_tokens"))
    assert response.json()["input_tokens"] == 42
    assert "x-toolwire-notes" not in response.headers
    assert upstream.of("counts")[-1].path.endswith("/responses/input_tokens")


# Conversations


class Conversations:
    def __init__(self, api: Responses) -> None:
        self._http, self._headers = api.http, api.headers
        self.url = api.url.replace("/responses", "/conversations")

    def ask(self, method: str, path: str = "", body: Any = None, **query: Any) -> httpx.Response:
        return self._http.request(method, self.url + path, json=body, params=query, headers=self._headers)

    def create(self, **body: Any) -> str:
        return good(self.ask("POST", body=body)).json()["id"]

    def said(self, id: str) -> list[str]:
        """What is in a conversation, oldest first."""
        page = good(self.ask("GET", f"/{id}/items", order="asc", limit=100)).json()
        return [brief(item) for item in page["data"]]


@pytest.fixture
def conversations(api: Responses) -> Conversations:
    return Conversations(api)


def test_a_conversation_is_made_read_changed_and_deleted(conversations):
    made = good(conversations.ask("POST", body={"metadata": {"a": "b"}, "items": [user("one")]})).json()
    id = made["id"]
    assert (made["object"], made["metadata"]) == ("conversation", {"a": "b"})
    assert good(conversations.ask("GET", f"/{id}")).json() == made
    changed = good(conversations.ask("POST", f"/{id}", {"metadata": {"c": "d"}})).json()
    assert changed == {**made, "metadata": {"c": "d"}}
    assert conversations.said(id) == ["user: one"]
    deleted = good(conversations.ask("DELETE", f"/{id}")).json()
    assert deleted == {"id": id, "object": "conversation.deleted", "deleted": True}
    assert error_of(conversations.ask("GET", f"/{id}"))[0] == 404


def test_an_empty_body_makes_a_conversation_too(conversations, api):
    assert good(api.http.post(conversations.url)).json()["metadata"] == {}


def test_items_of_a_conversation_are_added_listed_read_and_deleted(conversations):
    id = conversations.create()
    added = good(conversations.ask("POST", f"/{id}/items", {"items": [user("one"), user("two")]})).json()
    assert [brief(item) for item in added["data"]] == ["user: one", "user: two"]
    one, two = added["data"]
    assert good(conversations.ask("GET", f"/{id}/items/{two['id']}")).json() == two
    page = good(conversations.ask("GET", f"/{id}/items", limit=1)).json()
    assert (page["data"], page["has_more"]) == ([two], True)
    assert good(conversations.ask("DELETE", f"/{id}/items/{one['id']}")).json()["object"] == "conversation"
    assert error_of(conversations.ask("GET", f"/{id}/items/{one['id']}"))[0] == 404
    assert conversations.said(id) == ["user: two"]


@pytest.mark.parametrize(
    ("body", "param"),
    [({"metadata": {"a": 1}}, "metadata[...]"), ({"items": [{"role": "robot"}]}, "items[0].role"), ({"items": [5]}, "items[0]"), ({"items": 5}, "items")],
)  # fmt: skip
def test_a_conversation_that_cannot_be_is_a_400(conversations, body, param):
    status, error = error_of(conversations.ask("POST", body=body))
    assert (status, error["param"]) == (400, param)


@STREAMED
def test_a_turn_in_a_conversation_hears_it_and_is_added_to_it(api, conversations, upstream, streamed):
    upstream.replies["talks"] = [CALLS_FIND, SAYS_HI]
    id = conversations.create(items=[user("one")])
    first = api.ask("up/talks", "two", stream=streamed, tools=FIND, conversation=id)
    assert first["conversation"] == {"id": id}
    assert told(upstream, "talks") == ["user: one", "user: two"]
    said = ["user: one", "user: two", "assistant: Hm. ", "call c1"]
    assert conversations.said(id) == said
    api.ask("up/talks", [output_of("c1")], stream=streamed, tools=FIND, conversation={"id": id})
    assert told(upstream, "talks") == [*said, "output c1: done"]
    assert conversations.said(id) == [*said, "output c1: done", "assistant: hi"]


@pytest.mark.parametrize("way", ["plain", "streamed", "socket"])
def test_a_turn_that_is_not_stored_is_added_to_its_conversation_all_the_same(
    api, gateway, conversations, upstream, way
):
    upstream.replies["unstored-talk"] = [CALLS_FIND, SAYS_HI]
    id = conversations.create(items=[user("one")])
    fields = {"store": False, "tools": FIND, "conversation": id}
    if way == "socket":
        with opened(gateway) as socket:
            first = socket.ask("up/unstored-talk", "two", **by_socket(fields)).response
    else:
        first = api.ask("up/unstored-talk", "two", stream=way == "streamed", **fields)
    assert (first["store"], "required_action" in first) == (False, False), first
    is_missing(api.get(first["id"]))
    said = ["user: one", "user: two", "assistant: Hm. ", "call c1"]
    assert conversations.said(id) == said
    api.create("up/unstored-talk", [output_of("c1")], **fields)
    assert told(upstream, "unstored-talk") == [*said, "output c1: done"]
    assert conversations.said(id) == [*said, "output c1: done", "assistant: hi"]


def test_outputs_in_a_turn_that_is_not_stored_end_the_waiting(api, conversations, upstream):
    upstream.replies["unstored-outputs"] = [CALLS_FIND, SAYS_HI]
    id = conversations.create()
    first = api.create("up/unstored-outputs", "one", tools=FIND, conversation=id)
    assert "required_action" in api.retrieve(first["id"])
    api.create("up/unstored-outputs", [output_of("c1")], tools=FIND, conversation=id, store=False)
    assert "required_action" not in api.retrieve(first["id"])


def test_a_turn_that_is_not_stored_and_fails_is_not_added(api, conversations):
    id = conversations.create(items=[user("one")])
    api.stream("demo-error-middle", "two", conversation=id, store=False)
    assert conversations.said(id) == ["user: one"]


def test_a_compaction_of_a_conversation_is_not_added_to_it(api, conversations, upstream):
    upstream.replies["summary"] = SAYS_HI
    id = conversations.create(items=[user("one")])
    good(api.post({"model": "up/summary", "input": "two", "conversation": id}, "/compact"))
    assert conversations.said(id) == ["user: one"]


def test_a_turn_that_fails_is_not_added(api, conversations, upstream):
    upstream.replies["busy"] = BUSY
    id = conversations.create(items=[user("one")])
    api.post(response_body("up/busy", "two", conversation=id))
    api.stream("demo-error-middle", "three", conversation=id)
    assert conversations.said(id) == ["user: one"]


def test_outputs_submitted_in_a_conversation_continue_all_of_it(api, conversations, upstream):
    upstream.replies["talks"] = [CALLS_FIND, SAYS_HI, SAYS_HI]
    id = conversations.create(items=[user("one")])
    first = api.create("up/talks", "two", tools=FIND, conversation=id)
    good(api.submit(first["id"], {"c1": "done"}))
    said = ["user: one", "user: two", "assistant: Hm. ", "call c1", "output c1: done"]
    assert told(upstream, "talks") == said
    assert conversations.said(id) == [*said, "assistant: hi"]


def test_a_turn_in_an_unknown_conversation_is_a_404(api):
    status, error = error_of(api.post(response_body("demo", conversation="conv_nobody")))
    assert (status, error["code"], error["param"]) == (404, "conversation_not_found", "conversation")


def test_a_conversation_is_no_response(api, conversations):
    id = conversations.create(items=[user("one")])
    is_missing(api.get(id))
    is_missing(api.get(f"{id}/input_items"))
    is_missing(api.delete(id))
    assert conversations.said(id) == ["user: one"]
    assert api.post(response_body("demo", previous_response_id=id)).status_code == 404


# Bodies at fault

DEEP = b"[" * 3000 + b"]" * 3000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/responses", b'{"model":"demo","input":%b}'),
        ("/responses", b'{"model":"demo","input":[{"role":"user","content":%b}]}'),
        ("/responses", b'{"model":"demo","input":"x","tools":%b}'),
        ("/responses/compact", b'{"model":"demo","input":%b}'),
        ("/responses/input_tokens", b'{"model":"demo","input":%b}'),
        ("/responses/{id}/submit_tool_outputs", b'{"tool_outputs":%b}'),
        ("/responses/{id}/submit_tool_outputs", b'{"tool_outputs":[{"call_id":"c","output":%b}]}'),
        ("/conversations", b'{"items":%b}'),
        ("/conversations", b'{"items":[{"role":"user","content":%b}]}'),
    ],
)
@pytest.mark.parametrize("inside", [DEEP, b'"\xff"', b"nope"], ids=["too deep", "no text", "no json"])
def test_a_body_that_cannot_be_read_is_a_400(api, gateway, path, body, inside):
    id = api.create("demo", tools=FIND)["id"] if "{id}" in path else ""
    assert error_of(api.http.post(gateway.base_url + path.format(id=id), content=body % inside))[0] == 400


# Owners

KEYS = '[[keys]]\nname = "ann"\nkey = "sk-ann"\n[[keys]]\nname = "ben"\nkey = "sk-ben"\n'


@pytest.fixture(scope="module")
def guarded(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    server = Gateway(tmp_path_factory.mktemp("guarded"), KEYS + backend(upstream.url))
    yield server
    server.kill()  # something of hers runs for ever


class Owned:
    """Something of each kind that belongs to one key."""

    def __init__(self, api: Responses) -> None:
        self.response = api.create("demo", "Find the secret.", tools=FIND)
        self.call = calls_of(self.response)[0]["call_id"]
        self.background = api.create("demo-silent", background=True)["id"]
        self.conversation = Conversations(api).create(items=[user("secret")])
        self.item = api.get(f"{self.response['id']}/input_items").json()["first_id"]


REQUESTS: dict[str, tuple[str, str, Any]] = {
    "retrieve": ("GET", "/responses/{id}", None),
    "replay": ("GET", "/responses/{id}?stream=true", None),
    "delete": ("DELETE", "/responses/{id}", None),
    "cancel": ("POST", "/responses/{id}/cancel", {}),
    "input items": ("GET", "/responses/{id}/input_items", None),
    "submit": ("POST", "/responses/{id}/submit_tool_outputs", {"tool_outputs": [{"call_id": "{call}", "output": "x"}]}),
    "continue": ("POST", "/responses", {"model": "demo", "input": "x", "previous_response_id": "{id}"}),
    "continue in a stream": ("POST", "/responses", {"model": "demo", "input": "x", "stream": True, "previous_response_id": "{id}"}),
    "compact": ("POST", "/responses/compact", {"model": "demo", "input": "x", "previous_response_id": "{id}"}),
    "count": ("POST", "/responses/input_tokens", {"model": "demo", "input": "x", "previous_response_id": "{id}"}),
    "refer": ("POST", "/responses", {"model": "demo", "input": [{"type": "item_reference", "id": "{item}"}]}),
    "retrieve while it runs": ("GET", "/responses/{background}", None),
    "follow while it runs": ("GET", "/responses/{background}?stream=true", None),
    "cancel while it runs": ("POST", "/responses/{background}/cancel", {}),
    "delete while it runs": ("DELETE", "/responses/{background}", None),
    "read a conversation": ("GET", "/conversations/{conversation}", None),
    "change a conversation": ("POST", "/conversations/{conversation}", {"metadata": {}}),
    "delete a conversation": ("DELETE", "/conversations/{conversation}", None),
    "list a conversation": ("GET", "/conversations/{conversation}/items", None),
    "add to a conversation": ("POST", "/conversations/{conversation}/items", {"items": [{"role": "user", "content": "x"}]}),
    "read an item": ("GET", "/conversations/{conversation}/items/{item}", None),
    "delete an item": ("DELETE", "/conversations/{conversation}/items/{item}", None),
    "talk in a conversation": ("POST", "/responses", {"model": "demo", "input": "x", "conversation": "{conversation}"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def owned(http: httpx.Client, guarded: Gateway) -> Owned:
    return Owned(Responses(http, guarded, "sk-ann"))


def send(http: httpx.Client, base_url: str, request: str, owned: Owned, key: str) -> httpx.Response:
    method, path, body = REQUESTS[request]
    names = {"id": owned.response["id"], "call": owned.call, "background": owned.background}
    names |= {"conversation": owned.conversation, "item": owned.item}
    content = None if body is None else json.dumps(body)
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
        content = content and content.replace(f'"{{{name}}}"', f'"{value}"')
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"} if key else {}
    return http.request(method, base_url + path, content=content, headers=headers)


@pytest.mark.parametrize("request_name", REQUESTS)
def test_nobody_reaches_what_belongs_to_another_key(http, guarded, owned, request_name):
    response = send(http, guarded.base_url, request_name, owned, "sk-ben")
    assert error_of(response)[0] == 404
    assert "secret" not in response.text


@pytest.mark.parametrize("request_name", REQUESTS)
def test_nobody_without_a_key_gets_any_answer(http, guarded, owned, request_name):
    for key in ("", "sk-wrong"):
        status, error = error_of(send(http, guarded.base_url, request_name, owned, key))
        assert (status, error["type"]) == (401, "authentication_error")


def test_what_others_tried_changed_nothing(http, guarded):
    ann, ben = (Responses(http, guarded, key) for key in ("sk-ann", "sk-ben"))
    owned = Owned(ann)
    for request in REQUESTS:
        send(http, guarded.base_url, request, owned, "sk-ben")
    assert ann.retrieve(owned.response["id"]) == owned.response
    assert ann.get(owned.background).json()["status"] in ("queued", "in_progress")
    assert Conversations(ann).said(owned.conversation) == ["user: secret"]
    is_missing(ben.get(owned.response["id"]))


def test_without_keys_of_ours_the_clients_own_keys_tell_them_apart(http, gateway):
    ann, ben, nobody = (Responses(http, gateway, key) for key in ("sk-one", "sk-two", ""))
    response = ann.create("demo")
    assert ann.retrieve(response["id"]) == response
    is_missing(ben.get(response["id"]))
    is_missing(nobody.get(response["id"]))


# Bounds and files


def test_the_store_is_bounded_and_the_latest_stay(peculiar):
    first = peculiar.create("demo", "x" * 10_000, store=True)
    for _ in range(12):
        latest = peculiar.create("demo", "x" * 10_000, store=True)
        assert peculiar.retrieve(latest["id"]) == latest
    wait_until(lambda: peculiar.get(first["id"]).status_code == 404, 60)
    is_missing(peculiar.get(first["id"]))


@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1), (1, 0)])
def test_a_chain_goes_on_behind_links_that_were_deleted(api, upstream, gone):
    chain = [api.create("up/hi", "one")["id"]]
    for words in ("two", "three"):
        chain.append(api.create("up/hi", words, previous_response_id=chain[-1])["id"])
    for place in gone:
        good(api.delete(chain[place]))
    for place in gone:
        is_missing(api.get(chain[place]))
        is_missing(api.get(f"{chain[place]}/input_items"))
        is_missing(api.delete(chain[place]))
        status, error = error_of(api.post(response_body("up/hi", previous_response_id=chain[place])))
        assert (status, error["code"]) == (404, "previous_response_not_found")
        assert f"no response {chain[place]!r}" in error["message"]
    api.create("up/hi", "four", previous_response_id=chain[-1])
    said = [f"user: {words}" for words in ("one", "two", "three", "four")]
    assert told(upstream, "hi") == [
        said[0],
        "assistant: hi",
        said[1],
        "assistant: hi",
        said[2],
        "assistant: hi",
        said[3],
    ]


def test_an_item_of_a_deleted_link_cannot_be_referred_to(api):
    first = api.create("demo", "one")
    api.create("up/hi", "two", previous_response_id=first["id"])
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    good(api.post(response_body("up/hi", [reference, user("three")], store=False)))
    good(api.delete(first["id"]))
    assert error_of(api.post(response_body("up/hi", [reference, user("three")])))[0] == 404


def test_a_restart_keeps_what_is_in_a_file(http, start):
    config = '[store]\nurl = "sqlite:kept.db"\n'
    first = start(config)
    made = Responses(http, first).create("demo", "Find one.", tools=FIND)
    first.stop()
    again = Responses(http, start(config))
    assert again.retrieve(made["id"]) == made
    outputs = [output_of(calls_of(made)[0]["call_id"], "sunny")]
    assert text_of(again.create("demo", outputs, previous_response_id=made["id"])) == "According to find: sunny"


def test_a_store_that_cannot_be_used_is_one_clear_line_and_exit_2(tmp_path):
    (tmp_path / "kept.db").write_bytes(b"This is a letter, not a database. " * 100)
    (tmp_path / "toolwire.toml").write_text('[store]\nurl = "sqlite:kept.db"\n')
    result = processes.run(
        [sys.executable, "-m", "toolwire", "serve", "--port", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert "store.url" in line
    assert "kept.db" in line
