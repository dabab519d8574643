"""Runs: from settings and a model's name to one turn being produced. The gateway and the turn engine share it."""
