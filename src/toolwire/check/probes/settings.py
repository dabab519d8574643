"""What a response tells of its request."""

from toolwire.check.apis import Ask
from toolwire.check.probes.probe import TURNS, probe
from toolwire.check.probes.scene import BOTH, HELLO
from toolwire.check.talks import Talk, why_not
from toolwire.check.turns.loose import Json

PLAIN: Json = {
    "instructions": "Be brief.",
    "metadata": {"asked-by": "toolwire check"},
    "text": {"format": {"type": "text"}},
    "truncation": "disabled",
}
SAMPLING: Json = {"temperature": 0.5, "top_p": 0.9}
"""Models that reason refuse these."""


@probe("settings", "responses.echo", "responses.echo-sampling", TURNS)
async def told_again(talk: Talk) -> None:
    """Settings that are none of the defaults."""
    if talk.api.name != "responses":
        return
    for rule, settings in (("responses.echo", PLAIN), ("responses.echo-sampling", SAMPLING)):
        for stream in (True, False):
            got = await talk.ask(Ask((HELLO,), BOTH, "none", stream=stream, more=settings))
            if not got.ok:
                talk.unseen(rule, why_not(got))
