"""What the key of a client allows: models and backends."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from toolwire.core.errors import BadRequest


class Grant(msgspec.Struct, frozen=True):
    """The models, as names or globs, and the backends that a key may use; without any it may use all of them."""

    key: str
    """The key's name."""
    models: Sequence[str] = ()
    backends: Sequence[str] = ()

    def allows(self, backend: str, model: str) -> bool:
        """Whether the key may use this backend with a model, which is named as the client names it."""
        return (not self.backends or backend in self.backends) and self._allows_model(model)

    def check_model(self, model: str) -> None:
        """Raise `BadRequest` if the key may not use a model, whether the model exists or not."""
        if not self._allows_model(model):
            raise self._refuse(model, f"It may use {', '.join(self.models)}.")

    def check_backends(self, model: str, backends: Sequence[str]) -> list[str]:
        """Those of the backends of a model that the key may use. Raises `BadRequest` if there are none."""
        allowed = [name for name in backends if not self.backends or name in self.backends]
        if not allowed:
            raise self._refuse(model, f"It may use the backends {', '.join(self.backends)}.")
        return allowed

    def _allows_model(self, model: str) -> bool:
        return not self.models or any(fnmatchcase(model, glob) for glob in self.models)

    def _refuse(self, model: str, rest: str) -> BadRequest:
        message = f"The key `{self.key}` may not use the model {model!r}. {rest}"
        return BadRequest(message, "model", "model_not_allowed", status=403)
