"""Makes test cases of recorded turns, which `toolwire replay --assert` runs.

A case is a recording of one reply of a backend, so a turn that needs more than that cannot become a case.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from toolwire.assembly import ToolRules
from toolwire.config.settings import Settings
from toolwire.core.recording import Case, Expectation, Line, read_recording
from toolwire.gateway.console.content import TurnContent, unpack
from toolwire.gateway.console.replays import split_path
from toolwire.gateway.console.ring import RecordedTurn
from toolwire.gateway.console.rows import CLIENT_LEFT, TurnRow
from toolwire.gateway.console.secrets import redact
from toolwire.gateway.console.turn_view import make_recording
from toolwire.gateway.start_run import override_rules
from toolwire.turns.cases import read_outcome, run_case

_decode = msgspec.json.Decoder(Expectation).decode


def make_case(
    recorded: RecordedTurn, settings: Settings, secrets: tuple[bytes, ...], expected: bytes
) -> dict[str, Any]:
    """Make a test case of a turn: what is expected, what this version does otherwise, and the recording.

    Empty, `expected` is what the client got. Raises `ValueError` if the turn cannot be a test case.
    """
    turn, row = unpack(recorded.packed), recorded.row
    if fault := _find_obstacle(turn, row):
        raise ValueError(fault)
    prefix, _ = split_path(turn.path)
    headers = {name.encode("latin-1"): value.encode("latin-1", "replace") for name, value in turn.request_headers}
    rules = override_rules(settings.tools, headers, prefix)
    backend = next((each for each in settings.backends if each.name == turn.attempts[-1].backend), None)
    if expected:
        wanted = _decode(expected)
    else:
        parts = [data for _, data in turn.answer.parts()]
        wanted = read_outcome(row.dialect, row.status, row.answer_type, parts, row.notes)
    case = Case(
        wanted,
        row.id,
        not (row.stream or row.answer_type),
        _list_changes(rules),
        backend.profile if backend is not None else {},
        backend.auth if backend is not None else "",
    )
    line = redact(msgspec.json.encode(Line(case=case)), secrets)
    recording = make_recording(recorded) + line + b"\n"
    differences = run_case(read_recording(recording))
    return {"expected": msgspec.json.encode(wanted), "differences": differences, "recording": recording}


def _find_obstacle(turn: TurnContent, row: TurnRow) -> str:
    """Why a turn cannot be repeated from one reply; empty if it can."""
    last = turn.attempts[-1] if turn.attempts else None
    if row.status == CLIENT_LEFT:
        return "its client disconnected"
    if last is None or not last.status:
        return "no backend answered"
    if last.round:
        return "the gateway ran tools in it"
    if turn.is_cut or last.reply.withheld or turn.answer.withheld:
        return "a part of it is not kept"
    return ""


def _list_changes(rules: ToolRules) -> Mapping[str, object]:
    """The rules that differ from the defaults."""
    defaults = msgspec.to_builtins(ToolRules())
    return {name: value for name, value in msgspec.to_builtins(rules).items() if value != defaults[name]}
