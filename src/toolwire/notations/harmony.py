"""Harmony, the format of gpt-oss: messages with a head that names the channel and the recipient.

    <|channel|>analysis<|message|>They want the weather.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Rome"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It rains.<|return|>

(without the line ends). `analysis` is reasoning, `final` the answer, `commentary` text before a call. The reply begins
after `<|start|>assistant`, which is part of the prompt, and engines tend to drop the last marker. The recipient may
also come before the channel.
"""

import re

from toolwire.notations.table import Channel, Head, Notation

_TO = r"to=[^\s<]+"
_NAME = r"(?=(?:.*?\bto=(?:functions\.)?(?P<name>[^\s<]+))?)"
_CHANNEL = rf"\s*(?P<channel>\w+)(?:\s*{_TO})?\s*(?:<\|constrain\|>)?\s*\w*\s*"
_ROLE = rf"\s*assistant(?:\s*{_TO})?\s*(?:<\|channel\|>{_CHANNEL})?"
_CHANNELS: dict[str, Channel] = {"analysis": "reasoning", "commentary": "text", "final": "text", "": "text"}


def _message(open: str, head: str) -> Notation:
    return Notation(
        open=open,
        head=Head(pattern=re.compile(_NAME + head, re.DOTALL), end="<|message|>", channels=_CHANNELS),
        ends=("<|end|>", "<|call|>", "<|return|>"),
    )


HARMONY = (_message("<|channel|>", _CHANNEL), _message("<|start|>", _ROLE))
