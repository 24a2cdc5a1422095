"""The namespaces that a process serves: one value, built once at its start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Served:
    """The served namespaces; `in` and `for` use `names`."""

    names: tuple[str, ...]
    own: str
    """The operator's own namespace, with its Deployment and its ServiceAccount; rights to its settings are there."""
    default: str
    """The namespace of requests that name none: for new alerts, and for lists."""

    @classmethod
    def from_names(cls, own: str, others: Iterable[str] = ()) -> Served:
        """Serve the operator's own namespace, and these others."""
        return cls(names=tuple(dict.fromkeys((own, *others))), own=own, default=own)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)
