"""A store in PostgreSQL, for any number of machines.

`schema.py` has the tables, `database.py` the connections and what is done about lost ones, `operations.py` the
operations that are one statement each; everything else is shared with SQLite (`memory/sql`). The clock is that of the
database. What is committed survives the loss of any process. An operation that fails raises `StoreFailed`.
"""

from toolwire.memory.postgres.faults import NotUsable
from toolwire.memory.postgres.operations import PostgresOperations

__all__ = ["NotUsable", "PostgresStore"]


class PostgresStore(PostgresOperations):
    """A store in one database, whose tables are created with the first use. `pooler`: PgBouncer or the like is used."""

    def __init__(self, url: str, max_age: float, max_size: int, lease: float = 10.0, *, pooler: bool = False) -> None:
        super().__init__(url, max_age, max_size, lease, pooler=pooler)
