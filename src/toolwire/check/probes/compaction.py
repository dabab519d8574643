"""A history that is made short."""

import msgspec

from toolwire.check.apis import Ask
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import probe
from toolwire.check.probes.scene import HELLO, REMEMBER
from toolwire.check.talks import BUSY, Talk, why_not
from toolwire.check.turns.loose import Json, as_number, as_object, as_objects, as_text, shown

RULES = ("compact.form", "compact.fields", "compact.used", "compact.errors")
PATH = "/responses/compact"


@probe("compaction", *RULES, "errors.form", "errors.fields")
async def compacted(talk: Talk) -> None:
    """A conversation is compacted and goes on."""
    if talk.api.name != "responses":
        return
    whole = talk.body(Ask((REMEMBER,), stream=False))
    body: Json = {name: whole[name] for name in ("model", "input")}
    got = await talk.post(msgspec.json.encode(body), PATH)
    if got.status in BUSY or got.status == 501 or 400 <= got.status < 500:
        for rule in RULES:
            talk.unseen(rule, f"nothing was compacted: {why_not(got)}")
        return
    items = as_objects(got.fields.get("output"))
    is_sealed = any(item.get("type") == "compaction" and as_text(item.get("encrypted_content")) for item in items)
    says = (
        f"The output is {shown(got.fields.get('output'))}." if got.status == 200 else f"The answer is {why_not(got)}."
    )
    talk.judge("compact.form", got.status == 200 and is_sealed, says, got)
    if is_sealed:
        _check_fields(talk, got)
        await _use(talk, items)
    else:
        for rule in ("compact.fields", "compact.used"):
            talk.unseen(rule, "there is no compaction in the answer")
    nameless = await talk.post(msgspec.json.encode({"input": body["input"]}), PATH)
    talk.refused("compact.errors", nameless, "A compaction without a model")


def _check_fields(talk: Talk, got: Exchange) -> None:
    fields = got.fields
    sound = {
        "object": fields.get("object") == "response.compaction",
        "id": as_text(fields.get("id")),
        "created_at": as_number(fields.get("created_at")) is not None,
        "usage": as_number(as_object(fields.get("usage")).get("total_tokens")) is not None,
    }
    lacking = [name for name, there in sound.items() if not there]
    talk.judge("compact.fields", not lacking, f"The compaction lacks its {', '.join(lacking)}.", got)


async def _use(talk: Talk, items: list[Json]) -> None:
    more = {"input": [*items, {"role": "user", "content": HELLO.text}]}
    next = await talk.ask(Ask((HELLO,), stream=False, more=more))
    talk.answered("compact.used", next)
