"""The call that is being read from a block: its name, once complete, and the argument text that is certain."""

from toolwire.notations.source import Malformed
from toolwire.notations.table import JS_SPACE
from toolwire.notations.values import Schemas, Types, escape, write_value


class Draft:
    """A call that is being read; `name` is empty until complete, `drain` returns new argument text."""

    def __init__(self, schemas: Schemas, names: frozenset[str] | None) -> None:
        self._schemas = schemas
        self._names = names  # the only valid names, if given
        self._values: list[tuple[str, str, Types | None]] = []  # values read before the name
        self._count = 0
        self.pieces: list[str] = []
        self.name = ""
        self.whole = False  # the arguments are complete, even if the closing marker is missing
        self.repaired = False

    def drain(self) -> str:
        """Argument text that is certain and was not returned before."""
        text = "".join(self.pieces)
        self.pieces.clear()
        return text

    def settle_name(self, name: str) -> None:
        """Set the name; raises `Malformed` if it is not valid."""
        name = name.strip(JS_SPACE)
        if not name:
            raise Malformed("no name")
        if self._names is not None and name not in self._names:
            raise Malformed("not a declared tool")
        self.name = name
        for parameter, value, types in self._values:
            self.put(parameter, value, types)
        self._values = []

    def types_of(self, parameter: str) -> Types:
        """The types of a parameter in the tool's schema."""
        return self._schemas.types_of(self.name, parameter)

    def put(self, parameter: str, value: str, types: Types | None) -> None:
        """Add a whole value, of these types or of those in the schema."""
        if not self.name:
            self._values.append((parameter, value, types))
            return
        self.open_parameter(parameter)
        self.pieces.append(write_value(value, self.types_of(parameter) if types is None else types))

    def open_parameter(self, parameter: str) -> None:
        """Write the key of a parameter."""
        self.pieces.append(("," if self._count else "{") + f'"{escape(parameter)}":')
        self._count += 1

    def close_parameters(self) -> None:
        """Write the end of the arguments."""
        self.pieces.append("}" if self._count else "{}")
