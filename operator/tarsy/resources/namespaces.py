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
    """The namespace of requests that name none: of new alerts, and of lists."""

    @classmethod
    def from_names(cls, own: str, others: Iterable[str] = (), *, default: str | None = None) -> Served:
        """Serve the operator's own namespace, and these others; `default` is one of them, None is the own one."""
        return cls(names=tuple(dict.fromkeys((own, *others))), own=own, default=default or own)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)
