"""Compaction: a conversation goes into one item and comes out again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.museum.clients import Json, received
from toolwire.assembly import ToolRules, assemble_policies
from toolwire.backends.responses import OPENAI
from toolwire.backends.responses.encode import encode_request
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.request import Message, Request, TextPart
from toolwire.dialects import responses
from toolwire.dialects.responses import compaction

TRIGGER = {"type": "compaction_trigger"}


def ask(*items: Json, **fields: Any) -> Request:
    body = {"model": "m", "input": [{"role": "user", "content": "Find it."}, *items], "stream": True, **fields}
    return responses.decode_request(json.dumps(body).encode())


def compacted(*events: Event, request: Request | None = None) -> Any:
    """The stream of a turn that was asked to compact."""
    asked = compaction.make_summary_request(request or ask(TRIGGER))
    assembly = assemble_policies(asked, ToolRules(), "S", tuple, (compaction.ReplaceWithCompaction("cmp_S"),))
    encoder = responses.StreamEncoder(asked, "resp_7", 7, assembly.stats)
    passed = [out for event in (TurnStarted(), *events) for out in assembly.policies.feed(event)]
    return received(b"".join(piece for event in passed for piece in encoder.feed(event)))


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1))
def test_a_summary_survives_its_packing(summary: str):
    item = json.loads(bytes(compaction.encode_item("cmp_1", summary)))
    assert (item["type"], item["id"]) == ("compaction", "cmp_1")
    assert compaction.is_ours(item["encrypted_content"])
    assert compaction.expand(item["encrypted_content"], "input[0]").parts[0].text.endswith(summary)


def test_the_item_that_a_turn_gives_is_the_item_that_a_request_takes():
    told = compacted(TextDelta("They want "), TextDelta("é. "), Usage(5, 2), TurnEnded())
    [item] = told.output
    assert item["type"] == "compaction"
    assert told.types == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
    assert told.response["usage"]["total_tokens"] == 7
    request = ask(item, {"role": "user", "content": "Go on."})
    for asked in (request, Request("m", request.entries)):  # for a server of the same dialect, and for any other
        sent = json.loads(encode_request(asked, OPENAI, stream=False)[0])["input"]
        assert [entry["role"] for entry in sent] == ["user", "user", "user"]
        assert sent[1]["content"][0]["text"].endswith("They want é.")


def test_only_the_answer_goes_into_it():
    told = compacted(
        ReasoningDelta("Hm."), ReasoningEnded("rs_1", "signature"), TextDelta("Sum."),
        CallStarted("c", "f"), CallArgs("c", "{}"), CallEnded("c"), TurnEnded(),
    )  # fmt: skip
    assert [item["type"] for item in told.output] == ["compaction"]
    assert "required_action" not in told.response


@pytest.mark.parametrize("events", [(), (TextDelta(" \n"),), (ReasoningDelta("Hm."),)])
def test_no_summary_is_a_failure(events: tuple[Event, ...]):
    told = compacted(*events, TurnEnded())
    assert told.types[-2:] == ["error", "failed"]
    assert told.events[-2]["code"] == "no_summary"


def test_a_failure_stays_one():
    told = compacted(TextDelta("Half"), TurnFailed(Failure(502, "stream_cut", "gone")))
    assert told.events[-2]["code"] == "stream_cut"
    assert told.output == []


def test_it_is_asked_for_at_the_end_of_an_input_only():
    assert compaction.is_requested(ask(TRIGGER))
    assert not compaction.is_requested(ask(TRIGGER, {"role": "user", "content": "x"}))
    assert not compaction.is_requested(ask())
    assert not compaction.is_requested(Request("m", ()))


def test_a_model_is_asked_for_a_summary_without_tools_and_formats():
    request = ask(
        TRIGGER, tools=[{"type": "function", "name": "f"}, {"type": "web_search"}], tool_choice="required",
        text={"format": {"type": "json_object"}}, temperature=0.5,
    )  # fmt: skip
    asked = compaction.make_summary_request(request)
    assert (asked.tools, asked.hosted_tools, asked.tool_choice, asked.output_format) == ((), (), None, None)
    assert asked.entries[-1] == Message("user", (TextPart(compaction.SUMMARY_PROMPT),))
    assert len(asked.entries) == len(request.entries)
    sent = json.loads(encode_request(asked, OPENAI, stream=False)[0])
    assert not {"tools", "tool_choice", "text"} & set(sent)
    assert sent["temperature"] == 0.5
    assert "compaction_trigger" not in json.dumps(sent)
