"""Recordings for people to look at: who said what when, and what each dialect makes of it."""

from toolwire.replay.command import Options as Options
from toolwire.replay.command import run as run
