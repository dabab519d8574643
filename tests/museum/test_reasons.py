"""Finish reasons of chat servers that mean nothing."""

from tests.museum.cases import Theme
from tests.museum.lines import cc, part
from tests.museum.routes import chunks, completion, told, told_plainly

theme = Theme("finish")

_SILENT = ("None", "", "null")


@theme.row("fin-python-none")
def _() -> None:
    for silent in _SILENT:
        begun = (cc(content="a", finish=silent), cc(content="b", finish=silent))
        # A real reason that comes later counts, and none at all is inferred.
        endings = {"length": [cc(finish="length")], "content_filter": [cc(finish="content_filter")], "stop": []}
        for finish, ending in endings.items():
            answered = told("chat", chunks(*begun, *ending))
            assert (answered.said.text, answered.said.finish) == ("ab", finish), silent
        called = told("chat", chunks(cc(part("{}", index=0, id="a", name="f"), finish=silent), cc(finish=silent)))
        assert (called.calls, called.said.finish) == ([("a", "f", "{}")], "tool_calls"), silent
        assert called.notes == ("reason_missing",)
        plain = told_plainly("chat", completion({"content": "a"}, silent))
        assert (plain.said.text, plain.said.finish) == ("a", "stop")


test_museum = theme.test()
