"""The operations of a store, written once for SQLite and PostgreSQL.

The .sql files have the statements by subject; `statements.py` adapts them to each engine. `operation.py` says how one
piece of code runs on both. `Store` (`store.py`) is the whole contract; its base classes are the parts. Each engine adds
its connections, its tables, and the few operations that it has in a form of its own because they are the busiest:
saving a response, appending and following events, and reading small values.
"""
