"""Reports of what turns used, for `toolwire usage` and for the admin API."""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import get_args

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.memory.sql.store import Store
from toolwire.memory.sql.usage import HOUR, UsageField, UsageGroup

FIELDS: tuple[UsageField, ...] = get_args(UsageField)
NUMBERS = tuple(name for name in UsageGroup.__struct_fields__ if name != "values")
_UNITS = {"m": 60, "h": HOUR, "d": 24 * HOUR}
_FORMATS = {"day": ("%Y-%m-%d", 24 * HOUR), "hour": ("%Y-%m-%dT%H:00Z", HOUR)}


class UsageQuestion(msgspec.Struct, frozen=True):
    """What a report is about."""

    by: Sequence[UsageField]
    since: float
    until: float


def read_question(by: str, since: str, until: str) -> UsageQuestion:
    """A question as text: fields with commas between them, and two times. Raises `BadRequest`, which names the part."""
    names = [name.strip() for name in by.split(",") if name.strip()]
    for name in names:
        if name not in FIELDS or names.count(name) > 1:
            raise BadRequest(f"by: {name!r} is repeated or none of {', '.join(FIELDS)}.", "by")
    fields: dict[str, UsageField] = {field: field for field in FIELDS}
    return UsageQuestion([fields[name] for name in names], _read_time(since, "since"), _read_time(until, "until"))


def _read_time(text: str, field: str) -> float:
    """Seconds since 1970: a number of them, a day in UTC, or a time before now such as `7d`; now if it is empty."""
    if not text:
        return time.time()
    if found := re.fullmatch(r"(\d{1,6})([mhd])", text):
        return time.time() - int(found[1]) * _UNITS[found[2]]
    if re.fullmatch(r"\d{1,12}", text):
        return float(text)
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        message = f"{field}: {text!r} is no time such as 7d, 12h or 30m, and no day such as 2027-01-31."
        raise BadRequest(message, field) from None


async def make_report(store: Store, question: UsageQuestion) -> list[dict[str, str | int]]:
    """The rows of a report: the fields that were asked for, then the numbers."""
    groups = await store.sum_usage(question.by, question.since, question.until)
    return [
        {
            **{field: _show(field, value) for field, value in zip(question.by, group.values, strict=True)},
            **{name: getattr(group, name) for name in NUMBERS},
        }
        for group in groups
    ]


def _show(field: UsageField, value: str | int) -> str:
    if field not in _FORMATS:
        return str(value)
    pattern, seconds = _FORMATS[field]
    return datetime.fromtimestamp(int(value) * seconds, UTC).strftime(pattern)
