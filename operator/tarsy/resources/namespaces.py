"""The namespaces that a process serves: one value, made once at its start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Served:
    """The served namespaces; `in` and `for` go by `names`."""

    names: tuple[str, ...]
    own: str
    """The operator's own. Its Deployment and its account are there, and the rights to its setup."""
    default: str
    """The one where a request names none: alerts go there, and lists are of it."""

    @classmethod
    def only(cls, namespace: str) -> Served:
        """Serve the operator's own namespace, and no other."""
        return cls(names=(namespace,), own=namespace, default=namespace)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)
