"""The operations of a store, written once for SQLite and PostgreSQL.

`dialect.py` says how one SQL text serves both engines, `operation.py` how one piece of code does. The other modules
are the parts of the contract in `memory/store.py`. Each engine adds its connections, its schema, and the few operations
that it has in a form of its own because they are the busiest: saving a response, appending and following events, and
reading small values.
"""
