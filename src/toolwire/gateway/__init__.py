"""The gateway."""
