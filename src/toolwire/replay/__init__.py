"""Prints recordings: as a conversation with times, and as each dialect writes the reply."""

from toolwire.replay.assertions import run_cases as run_cases
from toolwire.replay.command import ReplayOptions as ReplayOptions
from toolwire.replay.command import run_replay as run_replay
