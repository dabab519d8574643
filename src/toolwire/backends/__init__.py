"""The protocols that we speak to a model. Each package exports a `Conversation`."""
