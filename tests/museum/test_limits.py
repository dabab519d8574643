"""Names and ids within the limits of a server: bijective, the same in every turn, and undone on the way back."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.lines import ask, cc, part
from tests.museum.routes import ASK, KINDS, began, chunks, hear, over, sent, tools_sent, use
from tests.support.frames import call, completed, created, stream
from toolwire.adapt.names import Limits
from toolwire.core.request import Request

theme = Theme("limits")

_LETTERS = re.compile(r"[A-Za-z0-9_-]+")
_LOWERING = ("chat", "messages")
"""Servers whose limits are known here."""


# Ids


def _history(dialect: str, *ids: str) -> Request:
    """Calls with these ids and their results, as clients of this dialect bring them back."""
    user: Json = {"role": "user", "content": "Go."}
    if dialect == "responses":
        items = [{"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"} for id in ids]
        items += [{"type": "function_call_output", "call_id": id, "output": f"of {id}"} for id in ids]
        return ASK[dialect](input=[user, *items])
    if dialect == "chat":
        calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
        results = [{"role": "tool", "tool_call_id": id, "content": f"of {id}"} for id in ids]
        return ASK[dialect](messages=[user, {"role": "assistant", "tool_calls": calls}, *results])
    used: list[Json] = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ids]
    answers = [{"type": "tool_result", "tool_use_id": id, "content": f"of {id}"} for id in ids]
    return ASK[dialect](messages=[user, {"role": "assistant", "content": used}, {"role": "user", "content": answers}])


def _paired(kind: str, request: Request, **profile: Any) -> dict[str, str]:
    """The ids a server sees, each with the result it has there."""
    body = sent(kind, request, **profile).body
    _, assistant, *rest = body["messages"]
    if kind == "chat":
        calls = [each["id"] for each in assistant["tool_calls"]]
        results = {each["tool_call_id"]: each["content"] for each in rest}
    else:
        calls = [each["id"] for each in assistant["content"]]
        results = {each["tool_use_id"]: each["content"] for each in rest[0]["content"]}
    assert calls == [*results], "every call has its result"
    return results


_STRANGE = ("functions.Bash:0", "a.b", "a:b", "a_b", "a b", "é", "...", "toolu_01-x")


@theme.row("lim-id-charset")
def _() -> None:
    for dialect in ASK:
        seen = _paired("messages", _history(dialect, *_STRANGE))
        assert [*seen.values()] == [f"of {id}" for id in _STRANGE]
        assert all(_LETTERS.fullmatch(id) for id in seen)
        assert len(seen) == len(_STRANGE), "none of them became another"
        assert {"a_b", "toolu_01-x"} <= set(seen), "what fits goes as it is"
        later = _paired("messages", _history(dialect, *_STRANGE, "later"))
        assert [*later] == [*seen, "later"], "the same in the next turn"


@given(st.lists(st.text(min_size=1, max_size=70), min_size=1, max_size=5, unique=True))
@example(["a.b", "a:b", "a_b"])
def test_any_ids_stay_apart_and_paired(ids: list[str]) -> None:
    limits = Limits(id_chars="A-Za-z0-9_-")
    fitted = [limits.fit_id(id) for id in ids]
    assert len({*fitted}) == len(ids)
    assert all(_LETTERS.fullmatch(id) for id in fitted)


def test_an_empty_id_is_replaced() -> None:
    [id] = _paired("messages", _history("chat", ""))
    assert _LETTERS.fullmatch(id)


_MISTRAL: dict[str, Any] = {"id_exact": 9}


@theme.row("lim-id-mistral")
def _() -> None:
    long, short, fits = "call_PTLP8xhu3uwZk4l3nlnrrJha", "c", "abcDEF123"
    for dialect in ASK:
        first = _paired("chat", _history(dialect, long), **_MISTRAL)
        later = _paired("chat", _history(dialect, long, short, fits), **_MISTRAL)
        assert all(re.fullmatch("[A-Za-z0-9]{9}", id) for id in later)
        assert [*later.values()] == [f"of {id}" for id in (long, short, fits)]
        assert [*later][:1] == [*first], "the same in every turn"
        assert [*later][2:] == [fits]
        # What the server makes itself reaches the client as it is.
        answer = chunks(cc(part("{}", index=0, id="D681PevKs", name="f")), cc(finish="tool_calls"))
        heard = hear("chat", answer, ASK[dialect](tools=("f",)), **_MISTRAL)
        assert heard.said.calls == (("D681PevKs", "f", "{}"),)


# Names


def _calling(kind: str, *names: str) -> bytes:
    """A server that calls these tools, in order."""
    ids = [f"c{place}" for place in range(len(names))]
    pairs = [*zip(ids, names, strict=True)]
    if kind == "chat":
        parts = [part("{}", index=place, id=id, name=name) for place, (id, name) in enumerate(pairs)]
        return chunks(cc(*parts), cc(finish="tool_calls"))
    if kind == "responses":
        calls = [call(id, name, "{}", index=place) for place, (id, name) in enumerate(pairs)]
        return stream(created(), *calls, completed())
    return stream(began(), *(use(place, id, name, "{}") for place, (id, name) in enumerate(pairs)), over("tool_use"))


def _shown(kind: str, request: Request) -> list[str]:
    """The names that a server is shown."""
    return [tool["name"] for tool in tools_sent(kind, request)]


def _comes_back(kind: str, dialect: str, names: tuple[str, ...]) -> None:
    """Every name the server was shown is called, and reaches the client as the client wrote it."""
    request = ASK[dialect](tools=names)
    heard = hear(kind, _calling(kind, *_shown(kind, request)), request)
    assert [name for _, name, _ in heard.said.calls] == [*names], (kind, dialect)


_CREATE = "mcp_atlassian-rovo-mcp-server-cloud_createConfluencePageWithAttachmentsAndPermissions"
_DELETE = _CREATE.replace("create", "delete")
_LONG = (_CREATE, _DELETE, f"{_CREATE}_1", f"{_CREATE}_2")


@theme.row("lim-name-collide")
def _() -> None:
    for dialect in ASK:
        shown = _shown("chat", ASK[dialect](tools=_LONG))
        assert len({*shown}) == len(_LONG)
        assert all(len(name) <= 64 for name in shown)
        for kind in KINDS:
            _comes_back(kind, dialect, _LONG)
        assert _shown("messages", ASK[dialect](tools=_LONG)) == [*_LONG], "128 letters fit there"


_names = st.text(min_size=1, max_size=80) | st.text("ab._- ", min_size=1, max_size=5)


@given(st.lists(_names, min_size=1, max_size=6, unique=True))
@example(["a.b", "a_b", "a b", "...", "___"])
@example([*_LONG])
def test_any_names_stay_apart_and_come_back(names: list[str]) -> None:
    request = ask(tools=tuple(names))
    shown = _shown("chat", request)
    assert len({*shown}) == len(names)
    assert all(_LETTERS.fullmatch(name) and len(name) <= 64 for name in shown)


@pytest.mark.parametrize("kind", _LOWERING)
def test_a_name_that_is_taken_is_not_given_to_another(kind: str) -> None:
    taken = Limits().fit_name("a.b")
    assert len({*_shown(kind, ask(tools=("a.b", taken)))}) == 2


_POINTED = ("a.b", "a_b", "Github.Get File", "mcp/x:y", "...", "plain")


def _past_names(kind: str, request: Request) -> list[str]:
    """The names of the calls in the history that a server is sent."""
    body = sent(kind, request).body
    if kind == "responses":
        return [item["name"] for item in body["input"] if item.get("type") == "function_call"]
    if kind == "chat":
        return [each["function"]["name"] for each in body["messages"][1]["tool_calls"]]
    return [each["name"] for each in body["messages"][1]["content"]]


def _called_before(dialect: str, name: str) -> Request:
    """A history with one call of a tool that nobody declares any more."""
    user: Json = {"role": "user", "content": "Go."}
    if dialect == "responses":
        made = {"type": "function_call", "call_id": "a", "name": name, "arguments": "{}"}
        return ASK[dialect](input=[user, made, {"type": "function_call_output", "call_id": "a", "output": "ok"}])
    if dialect == "chat":
        made = {"id": "a", "type": "function", "function": {"name": name, "arguments": "{}"}}
        result: Json = {"role": "tool", "tool_call_id": "a", "content": "ok"}
        return ASK[dialect](messages=[user, {"role": "assistant", "tool_calls": [made]}, result])
    used: Json = {"type": "tool_use", "id": "a", "name": name, "input": {}}
    answer: Json = {"type": "tool_result", "tool_use_id": "a", "content": "ok"}
    return ASK[dialect](
        messages=[user, {"role": "assistant", "content": [used]}, {"role": "user", "content": [answer]}]
    )


def _forced(dialect: str, name: str) -> Request:
    """A request for one tool by name."""
    choices = {
        "chat": {"type": "function", "function": {"name": name}},
        "responses": {"type": "function", "name": name},
        "messages": {"type": "tool", "name": name},
    }
    return ASK[dialect](tools=_POINTED, tool_choice=choices[dialect])


def _fits(kind: str, dialect: str) -> None:
    shown = _shown(kind, ASK[dialect](tools=_POINTED))
    assert len({*shown}) == len(_POINTED)
    assert all(_LETTERS.fullmatch(name) for name in shown), (kind, dialect)
    assert {"a_b", "plain"} <= {*shown}, "what fits goes as it is"
    [past] = _past_names(kind, _called_before(dialect, "multi_tool_use.parallel"))
    assert _LETTERS.fullmatch(past)
    assert _past_names(kind, _called_before(dialect, "a.b")) == [shown[0]], "a tool has one name, then and now"
    choice = str(sent(kind, _forced(dialect, "a.b")).body["tool_choice"])
    assert shown[0] in choice
    assert "a.b" not in choice


@theme.row("lim-name-charset")
def _() -> None:
    for dialect in ASK:
        for kind in KINDS:
            _comes_back(kind, dialect, _POINTED)
        for kind in _LOWERING:
            _fits(kind, dialect)


@pytest.mark.parametrize("dialect", [*ASK])
def test_names_fit_a_responses_server(dialect: str) -> None:
    _fits("responses", dialect)


test_museum = theme.test()
