"""Is an endpoint right about tool calls? Rules, and the conversations in which they are tried.

The rules about turns are pure stages and know nothing of a network: bytes in, findings out.
"""

from toolwire.check.turns.rule import Asked as Asked
from toolwire.check.turns.rule import Finding as Finding
from toolwire.check.turns.rule import Rule as Rule
from toolwire.check.turns.streams import StreamCheck as StreamCheck
from toolwire.check.turns.streams import check_plain as check_plain
