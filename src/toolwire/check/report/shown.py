"""One exchange in the HTML report: what was seen, a picture of the stream, the frames, and the request."""

from collections import Counter
from collections.abc import Iterator, Sequence

from toolwire.check.exchange import Exchange
from toolwire.check.report.evidence import address, cut, exact
from toolwire.check.report.markup import prose, text
from toolwire.check.report.timeline import timeline
from toolwire.check.turns.frames import Heard
from toolwire.check.turns.rule import Finding

MOST_FINDINGS = 5
MOST_FRAMES = 8
"""Offending frames that are shown."""
AROUND = 2
"""Frames before and after an offending one."""
FIRST = 12
"""Frames that are shown of a stream in which no frame by itself offends."""
MOST_BYTES = 4000
"""Of one frame or answer."""
MOST_ASKED = 20_000
"""Of a request."""


def shown(exchange: Exchange, findings: Sequence[Finding]) -> str:
    """All that one exchange has to say about a rule."""
    offending = sorted({place for finding in findings for place in finding.frames})
    return (
        f'<div class="seen"><h4>{_title(exchange)}</h4><ul>{"".join(_said(findings))}</ul>'
        f"{timeline(exchange, offending)}{_answer(exchange, offending)}{_request(exchange)}</div>"
    )


def _said(findings: Sequence[Finding]) -> Iterator[str]:
    """What was seen, each thing once."""
    counts = Counter(each.says for each in findings)
    for says, number in [*counts.items()][:MOST_FINDINGS]:
        times = f' <span class="soft">({number} times)</span>' if number > 1 else ""
        yield f"<li>{prose(cut(says, 1000))}{times}</li>"
    more = sum([*counts.values()][MOST_FINDINGS:])
    if more:
        yield f'<li class="soft">and {more} more like it in this exchange</li>'


def _title(exchange: Exchange) -> str:
    status = f"status {exchange.status}" if exchange.status else "no answer"
    kind = f"a stream of {len(exchange.heard)} events" if exchange.heard else text(exchange.content_type)
    about = [f"exchange {exchange.number}", text(exchange.probe), status, kind, text(cut(exchange.trouble, 300))]
    return " · ".join(part for part in about if part)


def _answer(exchange: Exchange, offending: Sequence[int]) -> str:
    if exchange.heard:
        rows = "".join(_rows(exchange.heard, offending))
        return _box("Frames", f'<ol class="frames">{rows}</ol>')
    if not exchange.body:
        return ""
    return _box("Answer", f"<pre>{text(cut(exact(exchange.body), MOST_BYTES))}</pre>")


def _box(name: str, inner: str) -> str:
    """A place of its own for long bytes, which can be scrolled with keys too."""
    return f'<div class="box" tabindex="0" role="region" aria-label="{name}">{inner}</div>'


def _rows(heard: Sequence[Heard], offending: Sequence[int]) -> Iterator[str]:
    """The offending frames with those around them; the beginning if there are none."""
    places = [each.place for each in heard]
    wanted = {near for place in offending[:MOST_FRAMES] for near in range(place - AROUND, place + AROUND + 1)}
    wanted = wanted & {*places} or {*places[:FIRST]}
    hidden = 0
    for each in heard:
        if each.place not in wanted:
            hidden += 1
            continue
        if hidden:
            yield _gap(hidden)
            hidden = 0
        yield _row(each, "fault" if each.place in offending else "near")
    if hidden:
        yield _gap(hidden)


def _gap(hidden: int) -> str:
    return f'<li class="gap">{hidden} {"frame" if hidden == 1 else "frames"} not shown</li>'


def _row(each: Heard, kind: str) -> str:
    at = f"<span>{each.at:.3f} s</span>" if each.at else ""
    data = text(cut(exact(each.raw).rstrip("\n"), MOST_BYTES))
    return f'<li class="{kind}"><span class="at">#{each.place} {at}</span><pre>{data}</pre></li>'


def _request(exchange: Exchange) -> str:
    sent = exchange.sent
    if not sent.method:
        return '<p class="soft">The request is not known.</p>'
    line = f"{text(sent.method)} {text(address(sent.url))}"
    if not sent.body:
        return f'<p class="soft">Request: <span class="url">{line}</span></p>'
    body = _box("Request", f"<pre>{text(cut(exact(sent.body), MOST_ASKED))}</pre>")
    summary = f'Request: <span class="url">{line}</span>, {len(sent.body):,} bytes'
    return f"<details><summary>{summary}</summary>{body}</details>"
