"""Prints recordings: as a conversation with times, and as each dialect writes the reply."""

from toolwire.replay.command import ReplayOptions as ReplayOptions
from toolwire.replay.command import run_replay as run_replay
