"""What the demo model says in words: what came of its calls, or what it is and what to try."""

from collections.abc import Sequence
from itertools import groupby

from toolwire.backends.demo.abilities import Ability
from toolwire.backends.demo.history import Result


def from_results(results: Sequence[Result]) -> str:
    """The results, with the name of their tool, and said to be failures where they are."""
    lines: list[str] = []
    for (name, failed), group in groupby(results, lambda result: (result.name, result.failed)):
        text = " ".join(result.text for result in group)
        lines.append(f"{name} failed: {text}" if failed else f"According to {name}: {text}")
    return "\n".join([*(text.rstrip("\n") for text in lines[:-1]), *lines[-1:]])


def introduction(words: str, abilities: Sequence[Ability]) -> str:
    """An answer to a prompt that no tool fits."""
    said = f"This is the demo model. You said: {words}" if words else "This is the demo model."
    about = (
        "It is a small script, not a language model: it calls the tool that a prompt names or clearly asks for, and "
        "answers from the result."
    )
    return f"{said}\n\n{about} {_advice(abilities)}"


def _advice(abilities: Sequence[Ability]) -> str:
    if not abilities:
        return "This request has no tools that it may call. For real answers, add a backend to toolwire.toml."
    examples = [f"“{example}”" for example in _examples(abilities)]
    return f"No tool fits this prompt. Try {' or '.join(examples)}." if examples else "No tool fits this prompt."


def _examples(abilities: Sequence[Ability]) -> list[str]:
    """Prompts that lead to a declared tool that changes nothing, or to a shell."""
    shell = any(ability.is_shell for ability in abilities)
    examples: list[str] = []
    if shell or any(ability.does("read", "file") for ability in abilities):
        examples.append("Read README.md")
    if shell or any(ability.does("find", "file") or ability.does("list", "directory") for ability in abilities):
        examples.append("List the files")
    if shell:
        examples.append("Run `ls -la`")
    harmless = next((ability.tool.name for ability in abilities if ability.is_harmless), "")
    return examples or ([f"Call {harmless}"] if harmless else [])
