"""The HTML report: one self-contained file without scripts, readable on a screen or a phone.

Everything that came from the server is escaped by `escaped`.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from toolwire import __version__
from toolwire.check.report.evidence import address, cut, escaped, prose
from toolwire.check.report.exchange import exchange_section
from toolwire.check.report.style import STYLE
from toolwire.check.rules import RULES
from toolwire.check.turns.rule import Finding
from toolwire.check.verdicts import Report, RuleCounts, Verdict, count_verdicts

MAX_EXCHANGES = 3
"""Exchanges shown for one rule on one API; the others are counted."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Even if escaping missed something, the browser loads and runs nothing."""
LABELS = {"must": "MUST broken", "should": "SHOULD broken", "passed": "passed", "none": "not observed"}
"""Labels of the counts, by CSS class."""


def as_html(report: Report) -> bytes:
    """The report as one self-contained page."""
    parts = (_head(report), _areas(report), _broken(report), _others(report, "passed"), _others(report, "not observed"))
    body = "\n".join(part for part in parts if part)
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>toolwire check: {escaped(address(report.target))}</title>
<style>{STYLE}</style>
</head>
<body><main>
{body}
<footer>Made by Toolwire {escaped(__version__)}.</footer>
</main></body>
</html>
"""
    return page.encode(errors="backslashreplace")


# The head


def _head(report: Report) -> str:
    counts = count_verdicts(report.verdicts)
    kind = "good" if report.is_sound and counts.passed else "bad" if not report.is_sound else "soft"
    model = f"<dt>Model</dt><dd>{escaped(report.model)}</dd>" if report.model else ""
    when = datetime.fromtimestamp(report.began, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<header>
<p class="brand">toolwire check</p>
<h1 class="{kind}">{escaped(report.headline)}</h1>
<dl><dt>Target</dt><dd class="url">{escaped(address(report.target))}</dd>{model}
<dt>Date</dt><dd>{when}</dd><dt>Tried</dt><dd>{_tried(report)}</dd></dl>
{_tiles(counts)}
{"".join(f'<p class="note">{note}</p>' for note in _notes(report))}
</header>"""


def _tried(report: Report) -> str:
    number = len(report.exchanges)
    one = "request" if report.seconds else "captured turn"
    about = f"{number} {one}{'' if number == 1 else 's'}"
    return f"{about} in {report.seconds:.1f} s" if report.seconds else about


def _tiles(counts: RuleCounts) -> str:
    tiles = (
        f'<li class="{kind if number else "none"}"><b>{number}</b> {word}</li>'
        for kind, word, number in _labelled(counts)
    )
    return f'<ul class="tiles">{"".join(tiles)}</ul>'


def _labelled(counts: RuleCounts) -> Iterable[tuple[str, str, int]]:
    """The CSS class, the label and the number of every kind of verdict."""
    numbers = (counts.must_broken, counts.should_broken, counts.passed, counts.not_observed)
    return ((*label, number) for label, number in zip(LABELS.items(), numbers, strict=True))


def _notes(report: Report) -> Iterable[str]:
    for api, reason in report.absent.items():
        yield f"{escaped(api)} is not there: {escaped(cut(reason, 300))}"
    for api, reason in report.ended.items():
        yield f"{escaped(api)} was not tried to the end: {escaped(cut(reason, 300))}"
    if report.spent:
        yield "The budget of requests ended before the probes did: raise --budget."


# The table


def _areas(report: Report) -> str:
    heads = "".join(f'<th scope="col">{escaped(api)}</th>' for api in report.apis)
    legend = " ".join(f'<span class="chip {kind}">{word}</span>' for kind, word in LABELS.items())
    rows = "".join(
        f'<tr><th scope="row">{escaped(area)}</th>{"".join(_cell(area, api, report) for api in report.apis)}</tr>'
        for area in report.areas
    )
    note = "Broken rules by name, the others by number; each leads to its rule."
    return f"""<section><h2>Rules by area</h2><p class="legend">{legend} <span class="soft">{note}</span></p>
<div class="wide"><table class="areas"><thead><tr><th scope="col">Area</th>{heads}</tr></thead>
<tbody>{rows}</tbody></table></div></section>"""


def _cell(area: str, api: str, report: Report) -> str:
    """The broken rules of one area and API, each a link to its proof, and links to the first of the others."""
    verdicts = [each for each in report.verdicts if each.api == api and RULES[each.rule].area == area]
    chips = [
        f'<a class="chip {RULES[each.rule].level.lower()}" href="#{_anchor(each)}">{each.rule.partition(".")[2]}</a>'
        for each in verdicts
        if each.broken
    ]
    for kind in ("passed", "none"):
        others = [each for each in verdicts if each.outcome == LABELS[kind]]
        if others:
            title = f"{len(others)} {LABELS[kind]}"
            chips.append(f'<a class="chip {kind}" href="#{_anchor(others[0])}" title="{title}">{len(others)}</a>')
    return f'<td><div class="chips">{"".join(chips)}</div></td>'


# The rules


def _broken(report: Report) -> str:
    if not report.broken:
        return ""
    index = "".join(
        f"<li{_following(each)}>{_badge(each)} "
        f'<a href="#{_anchor(each)}"><code>{each.rule}</code></a> {escaped(each.api)}</li>'
        for each in report.broken
    )
    articles = "\n".join(_article(each, report) for each in report.broken)
    following = count_verdicts(report.verdicts).following
    note = f'<p class="soft">{following} of them follow from others.</p>' if following else ""
    return f'<section><h2>Broken rules</h2>{note}<ul class="index">{index}</ul>\n{articles}</section>'


def _anchor(verdict: Verdict) -> str:
    return f"{verdict.api}-{verdict.rule}"


def _following(verdict: Verdict) -> str:
    return ' class="follows"' if verdict.follows else ""


def _causes(verdict: Verdict) -> str:
    links = (f'<a href="#{verdict.api}-{cause}"><code>{cause}</code></a>' for cause in verdict.follows)
    return f"<dt>Follows from</dt><dd>{', '.join(links)}</dd>" if verdict.follows else ""


def _badge(verdict: Verdict) -> str:
    level = RULES[verdict.rule].level
    return f'<span class="badge {level.lower()}">{level}</span>'


def _article(verdict: Verdict, report: Report) -> str:
    rule = RULES[verdict.rule]
    exchanges = {each.number: each for each in report.exchanges}
    found: dict[int, list[Finding]] = {}
    for finding, number in verdict.broken:
        found.setdefault(number, []).append(finding)
    seen = "\n".join(exchange_section(exchanges[number], found[number]) for number in [*found][:MAX_EXCHANGES])
    more = len(found) - MAX_EXCHANGES
    rest = f'<p class="soft">Seen in {more} more exchanges.</p>' if more > 0 else ""
    kind = f"{rule.level.lower()} follows" if verdict.follows else rule.level.lower()
    return f"""<article class="{kind}" id="{_anchor(verdict)}">
<h3>{_badge(verdict)} <code>{rule.id}</code> <span class="badge api">{escaped(verdict.api)}</span></h3>
<p class="sentence">{prose(rule.requirement)}</p>
<dl>{_causes(verdict)}<dt>Harm</dt><dd>{prose(rule.harm)}</dd><dt>Source</dt><dd>{prose(rule.source)}</dd></dl>
{seen}{rest}</article>"""


def _others(report: Report, outcome: str) -> str:
    """The rules that are not broken, with one outcome."""
    verdicts = [each for each in report.verdicts if each.outcome == outcome]
    if not verdicts:
        return ""
    items = "".join(
        f'<li id="{_anchor(each)}">{_badge(each)} <code>{each.rule}</code> '
        f'<span class="badge api">{escaped(each.api)}</span> '
        f'{prose(RULES[each.rule].requirement)} <span class="soft">({escaped(_reason(each))})</span></li>'
        for each in verdicts
    )
    summary = f"{len(verdicts)} {outcome}"
    return f'<section><details><summary>{summary}</summary><ul class="list">{items}</ul></details></section>'


def _reason(verdict: Verdict) -> str:
    """How often a rule was tested, or why it was not."""
    if verdict.seen:
        return "seen once" if verdict.seen == 1 else f"seen {verdict.seen} times"
    return "; ".join(cut(reason, 300) for reason in verdict.reasons) or "nothing was received that could test it"
