"""The protocols we speak to a model. Each module exports a `Conversation`; `replay` makes one from a recording."""
