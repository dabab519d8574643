"""A store in PostgreSQL, for any number of machines.

`schema.py` and `tables.sql` have the tables, `database.py` the connections and what is done about lost ones,
`operations.py` and `statements.sql` the operations that are one statement each; everything else is shared with SQLite
(`memory/sql`). The clock is that of the database.
"""

from toolwire.memory.postgres.faults import NotUsable
from toolwire.memory.postgres.operations import PostgresStore

__all__ = ["NotUsable", "PostgresStore"]
