"""Adapts a request to a server, and restores its calls: names, schemas, histories, arguments."""
