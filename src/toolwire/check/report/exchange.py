"""One exchange in the HTML report: findings, a timeline of the stream, the frames and the request."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from toolwire.check.exchange import Exchange
from toolwire.check.marks import Piece, mark, shorten
from toolwire.check.report.evidence import decode, escape, format_prose, mask_url, truncate
from toolwire.check.report.timeline import draw_timeline
from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.rule import Finding

MAX_FINDINGS = 5
MAX_FRAMES = 8
"""Marked frames that are shown."""
FRAMES_AROUND = 2
"""Frames shown before and after a marked one."""
MAX_UNMARKED_FRAMES = 12
"""Frames shown of a stream if no frame is marked."""
MAX_BYTES = 4000
"""Bytes shown of one frame or answer."""
MAX_REQUEST_BYTES = 20_000
"""Bytes shown of a request."""


def make_exchange(exchange: Exchange, findings: Sequence[Finding]) -> str:
    """The section about one exchange and one rule."""
    offending = {position: finding for finding in reversed(findings) for position in finding.frames}
    status = f"status {exchange.status}" if exchange.status else "no answer"
    kind = f"a stream of {len(exchange.received)} events" if exchange.received else escape(exchange.content_type)
    failure = escape(truncate(exchange.failure, 300))
    about = [f"exchange {exchange.number}", escape(exchange.probe), status, kind, failure]
    answer = ""
    if exchange.received:
        answer = _make_box("Frames", f'<ol class="frames">{"".join(_list_frames(exchange.received, offending))}</ol>')
    elif exchange.body:
        answer = _make_box("Answer", f"<pre>{_mark(decode(exchange.body), findings[0], MAX_BYTES)}</pre>")
    counts = Counter(each.detail for each in findings)
    details: list[str] = []
    for detail, number in [*counts.items()][:MAX_FINDINGS]:
        times = f' <span class="soft">({number} times)</span>' if number > 1 else ""
        details.append(f"<li>{format_prose(truncate(detail, 1000))}{times}</li>")
    more = sum([*counts.values()][MAX_FINDINGS:])
    if more:
        details.append(f'<li class="soft">and {more} more like it in this exchange</li>')
    return (
        f'<div class="seen"><h4>{" · ".join(part for part in about if part)}</h4>'
        f"<ul>{''.join(details)}</ul>"
        f"{draw_timeline(exchange, offending)}{answer}{_make_request(exchange, findings[0])}</div>"
    )


def _mark(text: str, finding: Finding, limit: int) -> str:
    """The text with its faulty parts marked; a long text is shortened around them."""
    pieces = mark(text, finding)
    if len(text) > limit:
        pieces = shorten(pieces) if any(each.is_marked for each in pieces) else [Piece(truncate(text, limit))]
    return "".join(f"<mark>{escape(each.text)}</mark>" if each.is_marked else escape(each.text) for each in pieces)


def _make_box(name: str, inner: str) -> str:
    """A scrollable box for long content, reachable by keyboard."""
    return f'<div class="box" tabindex="0" role="region" aria-label="{name}">{inner}</div>'


def _list_frames(received: Sequence[ReceivedFrame], offending: dict[int, Finding]) -> Iterator[str]:
    """The marked frames with their neighbours; the first frames if none is marked."""
    positions = [each.position for each in received]
    marked = sorted(offending)[:MAX_FRAMES]
    wanted = {near for at in marked for near in range(at - FRAMES_AROUND, at + FRAMES_AROUND + 1)}
    wanted = wanted & {*positions} or {*positions[:MAX_UNMARKED_FRAMES]}
    for is_shown, frames in groupby(received, lambda each: each.position in wanted):
        if not is_shown:
            hidden = len([*frames])
            yield f'<li class="gap">{hidden} {"frame" if hidden == 1 else "frames"} not shown</li>'
            continue
        for each in frames:
            finding = offending.get(each.position)
            at = f"<span>{each.at:.3f} s</span>" if each.at else ""
            raw = decode(each.raw).rstrip("\n")
            data = escape(truncate(raw, MAX_BYTES)) if finding is None else _mark(raw, finding, MAX_BYTES)
            kind = "near" if finding is None else "fault"
            yield f'<li class="{kind}"><span class="at">#{each.position} {at}</span><pre>{data}</pre></li>'


def _make_request(exchange: Exchange, finding: Finding) -> str:
    sent = exchange.sent
    if not sent.method:
        return '<p class="soft">The request is not known.</p>'
    line = f"{escape(sent.method)} {escape(mask_url(sent.url))}"
    if not sent.body:
        return f'<p class="soft">Request: <span class="url">{line}</span></p>'
    body = _make_box("Request", f"<pre>{_mark(decode(sent.body), finding, MAX_REQUEST_BYTES)}</pre>")
    summary = f'Request: <span class="url">{line}</span>, {len(sent.body):,} bytes'
    return f"<details><summary>{summary}</summary>{body}</details>"
