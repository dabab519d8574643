"""The rules of a turn: the request to its backend, and the policies for its events, in order.

`prepare` and the library call `adapt_request` and `assemble_policies`; the order in the latter is the design.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from toolwire.adapt.arguments import ArgumentJudge, ArgumentsRule, CheckArguments, RepairArguments, Validate
from toolwire.adapt.history import HistoryRule, repair_pairs
from toolwire.core.call_index import make_id_prefix
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.notes import PassingStats, StopMode, TurnStats
from toolwire.core.policies import (
    CapCalls,
    CorrectFinishReason,
    DropDuplicates,
    DropStrayOutputs,
    FailOnBrokenBlock,
    FinishAfterCalls,
    HoldCall,
    InferMissingName,
    NoteMissingCall,
    Policies,
    Policy,
    ReportTwins,
    StopAfterBurst,
    StopAfterFirstCall,
    SuppressTail,
    WithholdForbidden,
)
from toolwire.core.request import SEARCH, Request
from toolwire.notations.read import ReadTextCalls
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL, WriteUseTool
from toolwire.notations.values import Schemas

OutputMode: TypeAlias = Literal["openai-json", "obsidian-xml"]
OutputModeSetting: TypeAlias = Literal["auto", "openai-json", "obsidian-xml"]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class ToolRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[tools]` table of the settings and the PROXY_* flags: how tool calls are carried."""

    output_mode: OutputModeSetting = "auto"
    stop_after: bool = False
    stop_after_mode: StopMode = "burst"
    stop_after_grace_ms: Count = 300
    suppress_tail: bool | None = None
    max_calls: Count = 0
    dedup: bool = False
    delimiter: str = "\n\n"
    parallel: bool | None = None
    name_fallback: Literal["", "position"] = ""
    history: HistoryRule = "repair"
    unsupported: Literal["note", "reject"] = "note"
    finish_after_calls: bool = False
    strict_parsing: bool = False
    responses_events: Literal["openai", "extended"] = "openai"
    arguments: ArgumentsRule = "check"


def choose_output_mode(rules: ToolRules, request: Request) -> OutputMode:
    """The mode that the rules set. `auto`: text if no tools are declared and the prompt mentions `<use_tool>`."""
    if rules.output_mode != "auto":
        return rules.output_mode
    return "obsidian-xml" if not request.tools and request.prompt_mentions(USE_TOOL.open) else "openai-json"


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a backend's server, by its protocol and its profile."""

    base_url: str = ""
    """The address if the settings have none."""
    headers: Mapping[str, str] = {}
    """Sent with every request, unless the settings override them."""
    hosts_tools: tuple[str, ...] = ()
    """Dialects whose hosted tools, such as web search, it knows by name."""
    hosts: tuple[str, ...] = ()
    """Types of hosted tools that it accepts from clients of its own dialect, if it does not know all of them."""
    search: str = ""
    """The dialect whose tool search it supports."""
    results_anywhere: bool = False
    """Results may stand anywhere after their calls; other servers need them next to their calls."""
    counts_tokens: bool = False
    compacts: bool = False
    """It answers a `compaction_trigger` itself."""
    unsigned_reasoning: bool = False
    """Its reasoning may have no signature."""
    adds_include: bool = False
    """Requests to it ask for encrypted reasoning even if the client did not."""
    acts: bool = False
    """It runs commands while it answers, so a turn must not be requested twice."""


def adapt_request(request: Request, rules: ToolRules, kind: str, facts: ServerFacts) -> Request:
    """The request for a backend of this kind: with the rules applied, and without tools that the backend lacks.

    Raises `BadRequest`, which names the field.
    """
    request = apply_rules(request, rules, results_anywhere=facts.results_anywhere)
    if not facts.search or facts.search != request.dialect or "tool_search" in request.without:
        request = drop_search_tools(request)
    if request.dialect not in facts.hosts_tools:
        request = drop_hosted_tools(request, rules, facts.hosts if request.dialect == kind else ())
    if not request.tools and not request.hosted_tools and request.tool_choice is not None:
        request = msgspec.structs.replace(request, tool_choice=None)  # some servers refuse a choice without tools
    return request


def apply_rules(request: Request, rules: ToolRules, *, results_anywhere: bool = True) -> Request:
    """The request with calls and results paired, and parallel calls as configured. Raises `BadRequest`.

    `results_anywhere`: the backend allows results anywhere after their calls.
    """
    field = request.history_field
    try:
        moves = not (request.results_anywhere and results_anywhere)
        entries, notes = repair_pairs(request.entries, rules.history, moves=moves)
    except BadRequest as error:
        raise BadRequest(f"{field}: {error.message}", field) from None
    for note in notes:
        if request.continues and note.code in ("result_dropped", "result_as_message"):
            message = f"{field}: There is no call {note.subject!r} in this chain of responses."
            raise BadRequest(message, field, "call_not_found")
    parallel = request.parallel_calls if rules.parallel is None or not request.tools else rules.parallel
    if not notes and parallel == request.parallel_calls:
        return request
    return msgspec.structs.replace(request, entries=entries, notes=(*request.notes, *notes), parallel_calls=parallel)


def drop_search_tools(request: Request) -> Request:
    """The request for a backend without tool search: the model sees all tools from the start."""
    dropped = [tool.type for tool in request.hosted_tools if tool.searches]
    if not dropped:
        return request
    choice = request.tool_choice
    if choice is not None and choice.hosted is not None and b'"' + SEARCH.encode() in bytes(choice.hosted):
        raise _make_choice_error()
    return msgspec.structs.replace(
        request,
        tools=tuple(tool.shown for tool in request.tools),
        hosted_tools=tuple(tool for tool in request.hosted_tools if not tool.searches),
        tools_changed=True,
        notes=(*request.notes, *(Note("tool_dropped", type) for type in dropped)),
    )


def drop_hosted_tools(request: Request, rules: ToolRules, hosts: Sequence[str] = ()) -> Request:
    """The request for a backend that hosts only these types of tools. Others are dropped or refused."""
    dropped = [tool.type for tool in request.hosted_tools if tool.type not in hosts]
    if not dropped:
        return request
    if rules.unsupported == "reject":
        raise BadRequest(f"tools: This model has no tool of the type {dropped[0]!r}.", "tools", "unsupported_tool")
    kept = tuple(tool for tool in request.hosted_tools if tool.type in hosts)
    choice = request.tool_choice
    if choice is not None:
        if choice.hosted is not None:
            is_met = msgspec.json.decode(choice.hosted, type=dict[str, object]).get("type") in hosts
        else:
            is_met = choice.mode != "required" or bool(request.tools or kept)
        if not is_met:
            raise _make_choice_error()
    notes = [Note("tool_dropped", type) for type in dropped]
    return msgspec.structs.replace(request, hosted_tools=kept, notes=(*request.notes, *notes))


def make_dialect_error(field: str) -> BadRequest:
    """The error for a field that only a backend of the client's dialect can honour."""
    return BadRequest(f"{field}: Only a backend that speaks the client's protocol can honour it.", field)


def _make_choice_error() -> BadRequest:
    return BadRequest("tool_choice asks for a tool that this model does not have.", "tool_choice", "unsupported_tool")


class ReaderFacts(msgspec.Struct, frozen=True):
    """The facts about the reader of a turn's events that policies depend on."""

    shows_results: bool = True
    """It speaks the backend's dialect, so it would see results of calls in the backend's output."""
    text_calls: bool | None = None
    """Whether calls in text are read; None: depends on the request and the output mode."""
    keeps_notes: bool = False
    """Notes stay among the events; otherwise they are only counted."""


CLIENT = ReaderFacts()


class Assembly(msgspec.Struct, frozen=True):
    """The policies of one turn, and the two of them that the reader of the turn uses."""

    policies: Policies
    stats: TurnStats
    burst: StopAfterBurst | None


def assemble_policies(
    request: Request,
    rules: ToolRules,
    seed: str,
    report_twin: Callable[[str, str], object],
    last: Sequence[Policy] = (),
    validate: Validate | None = None,
    reader: ReaderFacts = CLIENT,
) -> Assembly:
    """The policies for this request, followed by `last`.

    `report_twin` is called with the id of a backend's call that is not delivered, and that of the call delivered in its
    place. `validate` checks arguments; without it they pass unchecked.
    """
    mode = choose_output_mode(rules, request)
    limit = 1 if request.parallel_calls is False or rules.parallel is False else rules.max_calls
    stats = (PassingStats if reader.keeps_notes else TurnStats)(rules.stop_after_mode)
    for note in request.notes:
        stats.add_note(note)
    names = request.tool_names
    policies: list[Policy] = [DropStrayOutputs()] if reader.shows_results else []
    policies.append(InferMissingName(names, request.forced_tool, rules.name_fallback))
    holding: list[ReadTextCalls | HoldCall] = []
    reads_text = request.wants_calls or (mode == "obsidian-xml" and not request.tools)
    if reads_text if reader.text_calls is None else reader.text_calls:
        declared = names if request.tools else None
        holding.append(ReadTextCalls((USE_TOOL, TOOL_CALL), seed, Schemas(request.tools), declared))
    if rules.dedup or mode == "obsidian-xml":
        holding.append(DropDuplicates(make_id_prefix(seed)) if rules.dedup else HoldCall())
    policies += holding
    if rules.strict_parsing:
        policies.append(FailOnBrokenBlock())
    policies += _choice_policies(request)
    if limit:
        policies.append(CapCalls(limit))
    if rules.arguments != "pass" and validate is not None:
        check = CheckArguments if rules.arguments == "check" else RepairArguments
        policies.append(check(ArgumentJudge(request.tools, validate)))
    # A client that reads `<use_tool>` would show all text after the first call.
    suppresses = mode == "obsidian-xml" if rules.suppress_tail is None else rules.suppress_tail
    if rules.stop_after and rules.stop_after_mode == "first":
        policies.append(StopAfterFirstCall())
    elif rules.stop_after or suppresses:
        policies.append(SuppressTail())
    burst = StopAfterBurst(holding) if rules.stop_after else None
    if burst is not None:
        policies.append(burst)
    if mode == "obsidian-xml":
        policies.append(WriteUseTool(rules.delimiter))
    if rules.finish_after_calls:
        policies.append(FinishAfterCalls())
    policies += (*last, ReportTwins(report_twin), CorrectFinishReason(stats), stats)
    return Assembly(Policies(*policies), stats, burst)


def _choice_policies(request: Request) -> Sequence[Policy]:
    """Policies that enforce the tool choice, since a backend may not obey it."""
    choice = request.tool_choice
    if choice is None or choice.hosted is not None:
        return ()
    policies: list[Policy] = []
    if choice.name or choice.limited or choice.mode == "none":
        allowed = (choice.name,) if choice.name else request.tool_names if choice.limited else ()
        policies.append(WithholdForbidden(allowed))
    if choice.name or (choice.mode == "required" and not request.hosted_tools):
        policies.append(NoteMissingCall(choice.name))
    return policies
