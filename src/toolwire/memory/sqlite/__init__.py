"""A store in one SQLite file, for all processes of one machine, or in memory, for one.

`schema.py` and `tables.sql` have the tables, `engine.py` the connections, threads and failures, `operations.py` and
`statements.sql` what is particular to SQLite; everything else is shared with PostgreSQL (`memory/sql`).
"""

from toolwire.memory.sqlite.engine import store_failure_of
from toolwire.memory.sqlite.operations import SqliteStore

__all__ = ["SqliteStore", "store_failure_of"]
