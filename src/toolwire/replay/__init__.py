"""Recordings for people to look at: who said what when, and what each dialect makes of it."""

from toolwire.replay.command import ReplayOptions as ReplayOptions
from toolwire.replay.command import run_replay as run_replay
