"""The words that prompts and tools share: what means the same, what is a verb, and which verbs only look.

A concept is the first word of a row below, or a word by itself without its ending.
"""

import re

_LOOKING = """
get fetch retrieve load obtain give
read show open view cat display print see
list ls enumerate
find glob locate
search grep lookup query google
check verify validate test inspect
count
describe summarize
compare
explain
translate
calculate compute evaluate
convert
say echo tell repeat
ask
ping
wait
watch monitor
"""

_CHANGING = """
run execute exec
write save create make
edit modify change replace update
delete remove rm erase unlink
send
mail
post publish
move mv rename
copy cp
start
stop
launch
invoke
spawn
resume
kill
cancel
close
install
deploy
build
schedule
book
order
buy
pay
apply
patch
commit
push
merge
set
add
insert
append
enable
disable
submit
generate
drop
clear
reset
"""

_THINGS = """
file files document
directory folder dir
command cmd shell bash terminal
weather forecast temperature
web internet online
page website url link site
image picture photo screenshot
time clock
"""


def words(row: str) -> frozenset[str]:
    """The words of a row."""
    return frozenset(row.split())


_IGNORED = words(
    """a an the this that these those my your our its his her their some any all each every new current local latest
    given following please now just me us it i you we they and or of to in into on at for from with by as about is are
    was be can could would should will do does did there here out up"""
)
"""Words without a meaning of their own, also between a verb and its object."""

QUESTIONS = words("what what's whats which who where when how why is are does")
"""Words that begin or make a question."""


def _rows(table: str) -> dict[str, str]:
    rows = [row.split() for row in table.strip().splitlines()]
    return {word: row[0] for row in rows for word in row}


LOOKING = frozenset(_rows(_LOOKING).values())
"""Verbs that change nothing."""
CHANGING = frozenset(_rows(_CHANGING).values())
"""Verbs that write, delete, execute or make something happen."""
VERBS = LOOKING | CHANGING
RETRIEVING = words("get read list find search check count describe explain")
"""Verbs that a question implies."""

_CONCEPTS = {**_rows(_THINGS), **_rows(_LOOKING), **_rows(_CHANGING)}

_ENDINGS = (("ies", "y"), ("es", ""), ("s", ""), ("ing", ""), ("ing", "e"), ("ed", ""), ("ed", "e"), ("er", ""))


def concept(word: str) -> str:
    """What a word means, in its simplest form; nothing for a word without a meaning of its own."""
    low = word.lower()
    if low in _IGNORED:
        return ""
    if low in _CONCEPTS or len(low) > 40:
        return _CONCEPTS.get(low, low)
    for ending, instead in _ENDINGS:
        if low.endswith(ending):
            stem = low[: -len(ending)] + instead
            if stem in _CONCEPTS and stem != "cat":
                return _CONCEPTS[stem]
            if stem[-2:-1] == stem[-1:] and stem[:-1] in _CONCEPTS:  # running
                return _CONCEPTS[stem[:-1]]
    return low[:-1] if low.endswith("s") and not low.endswith("ss") and len(low) > 3 else low


_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")


def parts_of(name: str) -> list[str]:
    """The words in the name of a tool or a property: `getWeather` and `get_weather` have two."""
    return [part.lower() for part in _PARTS.findall(name)]
