"""The operations of a store, written once for SQLite and PostgreSQL.

The .sql files have the statements by subject; `statements.py` adapts them to each engine. `operation.py` explains how
one piece of code runs on both. `Store` (`store.py`) is the whole contract, and its base classes are its parts. Each
engine adds its connections, its tables, and its own versions of the busiest operations: saving a response, appending
and following events, and reading small values.
"""
