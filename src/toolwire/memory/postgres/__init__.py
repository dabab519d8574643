"""A store in PostgreSQL, for any number of machines.

`schema.py` and `tables.sql` have the tables, `database.py` the connections and the recovery of lost ones,
`operations.py` and `statements.sql` the operations that are one statement each; everything else is shared with SQLite
(`memory/sql`). All times come from the clock of the database.
"""

from toolwire.memory.postgres.faults import NotUsable
from toolwire.memory.postgres.operations import PostgresStore

__all__ = ["NotUsable", "PostgresStore"]
