"""One exchange in the HTML report: findings, a timeline of the stream, the frames and the request."""

from collections import Counter
from collections.abc import Iterator, Sequence

from toolwire.check.exchange import Exchange
from toolwire.check.marks import Piece, marked, shortened
from toolwire.check.report.evidence import address, cut, escaped, exact, prose
from toolwire.check.report.timeline import timeline
from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.rule import Finding

MAX_FINDINGS = 5
MAX_FRAMES = 8
"""Marked frames that are shown."""
AROUND = 2
"""Frames shown before and after a marked one."""
FIRST = 12
"""Frames shown of a stream if no frame is marked."""
MAX_BYTES = 4000
"""Bytes shown of one frame or answer."""
MAX_REQUEST_BYTES = 20_000
"""Bytes shown of a request."""


def exchange_section(exchange: Exchange, findings: Sequence[Finding]) -> str:
    """The part of the page about one exchange and one rule."""
    offending = {position: finding for finding in reversed(findings) for position in finding.frames}
    proof = f"{_answer(exchange, offending, findings[0])}{_request(exchange, findings[0])}"
    return (
        f'<div class="seen"><h4>{_title(exchange)}</h4><ul>{"".join(_finding_items(findings))}</ul>'
        f"{timeline(exchange, offending)}{proof}</div>"
    )


def _finding_items(findings: Sequence[Finding]) -> Iterator[str]:
    """The findings, each distinct one once."""
    counts = Counter(each.detail for each in findings)
    for detail, number in [*counts.items()][:MAX_FINDINGS]:
        times = f' <span class="soft">({number} times)</span>' if number > 1 else ""
        yield f"<li>{prose(cut(detail, 1000))}{times}</li>"
    more = sum([*counts.values()][MAX_FINDINGS:])
    if more:
        yield f'<li class="soft">and {more} more like it in this exchange</li>'


def _title(exchange: Exchange) -> str:
    status = f"status {exchange.status}" if exchange.status else "no answer"
    kind = f"a stream of {len(exchange.received)} events" if exchange.received else escaped(exchange.content_type)
    about = [f"exchange {exchange.number}", escaped(exchange.probe), status, kind, escaped(cut(exchange.failure, 300))]
    return " · ".join(part for part in about if part)


def _answer(exchange: Exchange, offending: dict[int, Finding], first: Finding) -> str:
    if exchange.received:
        rows = "".join(_rows(exchange.received, offending))
        return _box("Frames", f'<ol class="frames">{rows}</ol>')
    if not exchange.body:
        return ""
    return _box("Answer", f"<pre>{_marked(exact(exchange.body), first, MAX_BYTES)}</pre>")


def _marked(text: str, finding: Finding, limit: int) -> str:
    """A text in which what is wrong is marked; of a long one the marked parts with their surroundings."""
    all_pieces = marked(text, finding)
    if len(text) > limit:
        all_pieces = shortened(all_pieces) if any(each.is_marked for each in all_pieces) else [Piece(cut(text, limit))]
    return "".join(
        f"<mark>{escaped(each.text)}</mark>" if each.is_marked else escaped(each.text) for each in all_pieces
    )


def _box(name: str, inner: str) -> str:
    """A scrollable box for long content, reachable by keyboard."""
    return f'<div class="box" tabindex="0" role="region" aria-label="{name}">{inner}</div>'


def _rows(received: Sequence[ReceivedFrame], offending: dict[int, Finding]) -> Iterator[str]:
    """The marked frames with their neighbours; the beginning if none is marked."""
    positions = [each.position for each in received]
    wanted = {
        near for position in sorted(offending)[:MAX_FRAMES] for near in range(position - AROUND, position + AROUND + 1)
    }
    wanted = wanted & {*positions} or {*positions[:FIRST]}
    hidden = 0
    for each in received:
        if each.position not in wanted:
            hidden += 1
            continue
        if hidden:
            yield _gap(hidden)
            hidden = 0
        yield _row(each, offending.get(each.position))
    if hidden:
        yield _gap(hidden)


def _gap(hidden: int) -> str:
    return f'<li class="gap">{hidden} {"frame" if hidden == 1 else "frames"} not shown</li>'


def _row(each: ReceivedFrame, finding: Finding | None) -> str:
    at = f"<span>{each.at:.3f} s</span>" if each.at else ""
    raw = exact(each.raw).rstrip("\n")
    data = escaped(cut(raw, MAX_BYTES)) if finding is None else _marked(raw, finding, MAX_BYTES)
    kind = "near" if finding is None else "fault"
    return f'<li class="{kind}"><span class="at">#{each.position} {at}</span><pre>{data}</pre></li>'


def _request(exchange: Exchange, finding: Finding) -> str:
    sent = exchange.sent
    if not sent.method:
        return '<p class="soft">The request is not known.</p>'
    line = f"{escaped(sent.method)} {escaped(address(sent.url))}"
    if not sent.body:
        return f'<p class="soft">Request: <span class="url">{line}</span></p>'
    body = _box("Request", f"<pre>{_marked(exact(sent.body), finding, MAX_REQUEST_BYTES)}</pre>")
    summary = f'Request: <span class="url">{line}</span>, {len(sent.body):,} bytes'
    return f"<details><summary>{summary}</summary>{body}</details>"
