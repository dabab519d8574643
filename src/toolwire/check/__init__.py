"""Checks whether an endpoint handles tool calls correctly.

The rules about turns are pure stages that know nothing of a network: bytes in, findings out.
"""

from toolwire.check.turns.rule import Finding as Finding
from toolwire.check.turns.rule import RequestFacts as RequestFacts
from toolwire.check.turns.rule import Rule as Rule
from toolwire.check.turns.streams import StreamCheck as StreamCheck
from toolwire.check.turns.streams import check_plain as check_plain
