"""What operators want to know about a store."""

import msgspec

from toolwire.config.settings import Settings, bytes_of, make_store
from toolwire.memory.store import Lease, Member, StoreStats

LISTED = 100
"""Most members and leases that are listed."""


class Report(msgspec.Struct, frozen=True):
    """What is in a store."""

    engine: str
    place: str
    version: int
    """The version of its schema; 0 if there is no store yet."""
    newest: int
    """The version that this program makes."""
    max_size: int
    stats: StoreStats = StoreStats()
    members: list[Member] = []
    leases: list[Lease] = []

    @property
    def is_ready(self) -> bool:
        """Whether it can be used as it is."""
        return self.version == 0 or self.version >= self.newest


async def report_on(settings: Settings) -> Report:
    """Look at a store without changing it: one of an older version is not opened."""
    store = make_store(settings)
    engine = "postgresql" if settings.store.is_database else "sqlite"
    try:
        version = await store.inspect()
        report = Report(engine, settings.store.shown, version, store.version, bytes_of(settings.store.max_size))
        if version < store.version:
            return report
        return msgspec.structs.replace(
            report,
            stats=await store.stats(),
            members=await store.members(LISTED),
            leases=await store.leases(LISTED),
        )
    finally:
        await store.close()


def as_text(report: Report) -> str:
    stats = report.stats
    lines = [
        ("engine", report.engine),
        ("store", report.place),
        ("version", _version(report)),
        ("bytes", f"{stats.bytes:,} of {report.max_size:,}" if report.max_size else f"{stats.bytes:,}"),
        ("responses", f"{stats.responses:,}"),
        ("conversations", f"{stats.conversations:,}"),
        ("runs", f"{stats.runs:,} not over"),
        ("members", f"{stats.members:,}"),
        *(("", " ".join(filter(None, (each.id, each.host, each.socket)))) for each in report.members),
        ("leases", f"{len(report.leases):,}" + (" or more" if len(report.leases) == LISTED else "")),
        *(("", f"{each.name} {each.member} epoch {each.epoch} step {each.step}") for each in report.leases),
    ]
    shown = lines if report.is_ready and report.version else lines[:3]
    return "\n".join(f"{name:14}{text}" for name, text in shown)


def _version(report: Report) -> str:
    if not report.version:
        return "none: it is made when there is something to keep"
    if report.version < report.newest:
        return f"{report.version}; toolwire store migrate, or serve, brings it to {report.newest}"
    if report.version > report.newest:
        return f"{report.version}, which this toolwire can use; it makes {report.newest}"
    return f"{report.version}"
