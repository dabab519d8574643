"""`toolwire run` in a terminal: one prompt, or a session with an input line."""
