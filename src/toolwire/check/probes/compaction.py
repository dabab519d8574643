"""Probes of compaction."""

import msgspec

from toolwire.check.apis import ProbeRequest
from toolwire.check.exchange import Exchange
from toolwire.check.probes.fixtures import HELLO, REMEMBER
from toolwire.check.probes.probe import probe
from toolwire.check.sessions import BUSY, ProbeSession, failure_reason
from toolwire.check.turns.loose import Json, as_number, as_object, as_objects, as_text, shown

RULES = ("compact.form", "compact.fields", "compact.used", "compact.errors")
PATH = "/responses/compact"


@probe("compaction", *RULES, "errors.form", "errors.fields")
async def compacted(session: ProbeSession) -> None:
    """A conversation is compacted and goes on."""
    if session.api.name != "responses":
        return
    whole = session.body(ProbeRequest((REMEMBER,), stream=False))
    body: Json = {name: whole[name] for name in ("model", "input")}
    answer = await session.post(msgspec.json.encode(body), PATH)
    if answer.status in BUSY or answer.status == 501 or 400 <= answer.status < 500:
        for rule in RULES:
            session.not_observed(rule, f"nothing was compacted: {failure_reason(answer)}")
        return
    items = as_objects(answer.fields.get("output"))
    has_compaction = any(item.get("type") == "compaction" and as_text(item.get("encrypted_content")) for item in items)
    detail = (
        f"The output is {shown(answer.fields.get('output'))}."
        if answer.status == 200
        else f"The answer is {failure_reason(answer)}."
    )
    session.judge("compact.form", answer.status == 200 and has_compaction, detail, answer)
    if has_compaction:
        _check_fields(session, answer)
        await _use(session, items)
    else:
        for rule in ("compact.fields", "compact.used"):
            session.not_observed(rule, "there is no compaction in the answer")
    no_model = await session.post(msgspec.json.encode({"input": body["input"]}), PATH)
    session.refused("compact.errors", no_model, "A compaction without a model")


def _check_fields(session: ProbeSession, answer: Exchange) -> None:
    fields = answer.fields
    sound = {
        "object": fields.get("object") == "response.compaction",
        "id": as_text(fields.get("id")),
        "created_at": as_number(fields.get("created_at")) is not None,
        "usage": as_number(as_object(fields.get("usage")).get("total_tokens")) is not None,
    }
    lacking = [name for name, there in sound.items() if not there]
    session.judge("compact.fields", not lacking, f"The compaction lacks its {', '.join(lacking)}.", answer)


async def _use(session: ProbeSession, items: list[Json]) -> None:
    more = {"input": [*items, {"role": "user", "content": HELLO.text}]}
    next = await session.ask(ProbeRequest((HELLO,), stream=False, more=more))
    session.answered("compact.used", next)
