"""A request for a server that knows less, and the way back: names, ids, namespaces, custom tools, seals."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event
from toolwire.core.lowering import lowered
from toolwire.core.names import Limits
from toolwire.core.request import CallEntry, Message, Request, ResultEntry, TextPart, Tool, ToolChoice
from toolwire.core.seals import Seal, pack, unpack
from toolwire.core.unwrap import Unwrap, wrap

NARROW = Limits(name_length=64, id_letters="A-Za-z0-9_-")
USER = Message("user", (TextPart("Go."),))


def test_a_request_that_fits_is_left_alone():
    request = Request("m", (USER, CallEntry("c1", "f", "{}"), ResultEntry("c1", ())), tools=(Tool("f"),))
    lower, restore = lowered(request, NARROW)
    assert lower is request
    assert restore.table == {}


@given(st.lists(st.text(max_size=90), min_size=1, max_size=8, unique=True))
def test_names_and_ids_fit_and_stay_apart(texts: list[str]):
    for fit in (NARROW.name, NARROW.id, Limits(id_exact=9).id):
        made = [fit(text) for text in texts]
        assert len(set(made)) == len(texts)
        assert made == [fit(text) for text in texts], "the same in every turn"
    assert all(len(NARROW.name(text)) <= 64 for text in texts)
    assert all(len(Limits(id_exact=9).id(text)) == 9 for text in texts)


@pytest.mark.parametrize("name", ["f", "mcp__docs__search", "A-b_9" * 12])
def test_a_name_that_fits_stays(name: str):
    assert NARROW.name(name) == name


def test_namespaces_and_strange_names_come_back():
    tools = (Tool("search", namespace="docs"), Tool("search", namespace="code"), Tool("a.b"), Tool("a_b"))
    lower, restore = lowered(Request("m", (USER,), tools=tools), NARROW)
    names = [tool.name for tool in lower.tools]
    assert len(set(names)) == 4
    assert names[:2] == ["docs__search", "code__search"]
    back = [restore.feed(CallStarted("c", name))[0] for name in names]
    assert [(event.namespace, event.name) for event in back if isinstance(event, CallStarted)] == [
        ("docs", "search"),
        ("code", "search"),
        ("", "a.b"),
        ("", "a_b"),
    ]


def test_history_and_choice_go_by_the_same_names():
    entries = (USER, CallEntry("x:1", "search", "{}", namespace="docs"), ResultEntry("x:1", (TextPart("ok"),)))
    choice = ToolChoice("required", "search")
    lower, _ = lowered(Request("m", entries, tools=(Tool("search", namespace="docs"),), tool_choice=choice), NARROW)
    _, call, result = lower.entries
    assert isinstance(call, CallEntry)
    assert isinstance(result, ResultEntry)
    assert (call.name, call.namespace) == ("docs__search", "")
    assert call.id == result.call_id != "x:1"
    assert lower.tool_choice is not None
    assert lower.tool_choice.name == "docs__search"


def _restored(tool: Tool, *pieces: str) -> list[Event]:
    _, restore = lowered(Request("m", (USER,), tools=(tool,)), NARROW)
    events = [CallStarted("c", tool.name), *(CallArgs("c", piece) for piece in pieces), CallEnded("c")]
    return [out for event in events for out in restore.feed(event)]


def test_a_custom_tool_is_a_function_on_the_way_and_itself_again_after_it():
    tool = Tool("patch", "Applies.", kind="custom")
    lower, _ = lowered(Request("m", (CallEntry("c", "patch", "a\nb", "custom"),), tools=(tool,)), NARROW)
    assert lower.tools[0].kind == "function"
    [call] = lower.entries
    assert isinstance(call, CallEntry)
    assert (call.kind, json.loads(call.arguments)) == ("function", {"input": "a\nb"})
    start, *pieces, end = _restored(tool, '{"inp', 'ut": "a\\', 'n\\u00e9"}')
    assert (start.kind, end) == ("custom", CallEnded("c"))
    assert "".join(piece.text for piece in pieces if isinstance(piece, CallArgs)) == "a\né"


@given(st.text(st.characters(exclude_categories=("Cs",))), st.randoms(use_true_random=False), st.booleans())
def test_an_input_is_unwrapped_however_its_json_is_cut(text: str, random, ascii_only: bool):
    wrapped = json.dumps({"input": text}, ensure_ascii=ascii_only)
    cuts = sorted(random.randrange(len(wrapped) + 1) for _ in range(4))
    pieces = [wrapped[start:end] for start, end in zip([0, *cuts], [*cuts, len(wrapped)], strict=True)]
    for told in (pieces, list(wrapped), [wrapped]):
        unwrap = Unwrap()
        assert "".join([*map(unwrap.feed, told), unwrap.end()]) == text
    assert json.loads(wrap(text)) == {"input": text}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"patch": "x"}', "x"),
        ('{ "content" : "x" }', "x"),
        ('{"other": "x"}', "x"),
        ('{"a": 1, "b": 2}', '{"a": 1, "b": 2}'),
        ('"x"', '"x"'),
        ("", ""),
        ('{"input": "cut', "cut"),
    ],
)
def test_what_is_no_wrapper_is_the_input_itself(given: str, text: str):
    for told in ([given], list(given)):
        unwrap = Unwrap()
        assert "".join([*map(unwrap.feed, told), unwrap.end()]) == text


def test_a_seal_is_carried_whole_and_only_ours_is_opened():
    seal = Seal("messages", "", ("Hm.",), "SEAL", redacted=False)
    assert unpack(pack(seal)) == seal
    assert unpack("SEAL") is None
    assert unpack(pack(seal)[:-3] + "!!!") is None
