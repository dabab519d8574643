"""What the rules make of a request before it is sent to a backend."""

import json
from typing import Any

import msgspec
import pytest

from toolwire.assembly import ToolRules, apply_rules, assemble_policies, drop_hosted_tools
from toolwire.core.errors import BadRequest
from toolwire.core.notes import Note
from toolwire.core.request import CallEntry, HostedTool, Message, Request, ResultEntry, TextPart, Tool, ToolChoice


def hosted(type: str) -> HostedTool:
    return HostedTool(type, raw({"type": type}))


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def asked(*types: str, **fields: Any) -> Request:
    return Request("m", (), hosted_tools=tuple(map(hosted, types)), **fields)


def test_tools_that_the_backend_runs_stay_and_others_are_left_out_with_a_note():
    both = asked("web_search", "shell")
    left = drop_hosted_tools(both, ToolRules(), ["web_search"])
    assert [tool.type for tool in left.hosted_tools] == ["web_search"]
    assert left.notes == (Note("tool_dropped", "shell"),)


@pytest.mark.parametrize("request_", [asked(), asked("web_search")], ids=["none", "one-that-it-has"])
def test_a_request_whose_tools_the_backend_has_is_as_it_was(request_: Request):
    assert drop_hosted_tools(request_, ToolRules(), ["web_search"]) is request_


def test_a_tool_that_nobody_can_run_is_refused_where_the_rules_say_so():
    with pytest.raises(BadRequest, match="no tool of the type 'shell'"):
        drop_hosted_tools(asked("shell"), ToolRules(unsupported="reject"))


@pytest.mark.parametrize(
    "choice", [ToolChoice("required", hosted=raw({"type": "shell"})), ToolChoice("required")], ids=["it", "any"]
)
def test_a_choice_that_no_tool_is_left_for_is_refused(choice: ToolChoice):
    with pytest.raises(BadRequest, match="a tool that this model does not have"):
        drop_hosted_tools(asked("shell", tool_choice=choice), ToolRules())


def test_a_choice_that_another_tool_can_meet_goes_on():
    left = drop_hosted_tools(asked("shell", tools=(Tool("f"),), tool_choice=ToolChoice("required")), ToolRules())
    assert left.hosted_tools == ()


def test_notes_of_the_request_are_counted_with_the_turn():
    assembly = assemble_policies(
        Request("m", (), notes=(Note("field_dropped", "x"),)), ToolRules(), "S", lambda call, delivered: None
    )
    assert [note.code for note in assembly.stats.notes] == ["field_dropped"]


USER = Message("user", (TextPart("Go."),))


def test_a_broken_history_names_its_field_where_the_rules_are_strict():
    broken = Request("m", (USER, CallEntry("a", "f", "{}"), USER), history_field="messages")
    with pytest.raises(BadRequest, match=r"^messages: ") as refused:
        apply_rules(broken, ToolRules(history="strict"))
    assert refused.value.param == "messages"


def test_a_result_of_no_call_in_a_chain_is_refused():
    lost = Request("m", (USER, ResultEntry("call_9", ())), continues=True)
    with pytest.raises(BadRequest, match="no call 'call_9' in this chain") as refused:
        apply_rules(lost, ToolRules())
    assert refused.value.code == "call_not_found"
