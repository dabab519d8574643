"""What a call of Write, Edit or apply_patch would change, found out before it runs."""

import msgspec

from toolwire.agent.tools import confine, files, patch
from toolwire.agent.tools.confine import ConfinedPath, confined
from toolwire.turns.tools.call import ToolCall, read_arguments
from toolwire.turns.tools.registry import Context, Tool


class FileChange(msgspec.Struct, frozen=True):
    """A file before and after; None where there is none."""

    name: str
    before: bytes | None
    after: bytes | None


class _Write(msgspec.Struct):
    path: str
    content: str


class _Edit(msgspec.Struct):
    path: str
    old: str
    new: str
    all: bool = False


def changes(tool: Tool, call: ToolCall, context: Context) -> list[FileChange]:
    """The changes; none for a tool that is not one of these. Raises `ToolError` if the call could not work."""
    if tool is files.write:
        write = read_arguments(call, _Write)
        target = confined(write.path, context)
        return [FileChange(target.name, _content(target, context), confine.encoded(write.content))]
    if tool is files.edit:
        edit = read_arguments(call, _Edit)
        plan = files.plan_edit(edit.path, edit.old, edit.new, context, everywhere=edit.all)
        return [FileChange(plan.target.name, plan.before.data, plan.after)]
    if tool is patch.apply_patch:
        drafts = patch.planned(patch.input_of(call), context)[0].drafts
        return [FileChange(each.target.name, _content(each.target, context), each.content) for each in drafts]
    return []


def _content(target: ConfinedPath, context: Context) -> bytes | None:
    with confine.explaining(target, context):
        there = confine.existing(target)
    return confine.read_whole(target, context).data if there is not None else None
