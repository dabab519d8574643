"""The pure centre: events, their order, and the stages every dialect and backend shares."""
