"""Probes of the request settings that a response repeats."""

from toolwire.check.apis import ProbeRequest
from toolwire.check.probes.fixtures import BOTH, HELLO
from toolwire.check.probes.probe import TURNS, probe
from toolwire.check.sessions import ProbeSession, failure_reason
from toolwire.check.turns.loose import Json

SETTINGS: Json = {
    "instructions": "Be brief.",
    "metadata": {"asked-by": "toolwire check"},
    "text": {"format": {"type": "text"}},
    "truncation": "disabled",
}
SAMPLING: Json = {"temperature": 0.5, "top_p": 0.9}
"""Reasoning models refuse these."""


@probe("settings", "responses.echo", "responses.echo-sampling", TURNS)
async def echoed_settings(session: ProbeSession) -> None:
    """Settings that differ from the defaults."""
    if session.api.name != "responses":
        return
    for rule, settings in (("responses.echo", SETTINGS), ("responses.echo-sampling", SAMPLING)):
        for stream in (True, False):
            answer = await session.ask(ProbeRequest((HELLO,), BOTH, "none", stream=stream, more=settings))
            if not answer.ok:
                session.not_observed(rule, failure_reason(answer))
