"""The channels on which a process listens for hints; `notify` sends and receives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping


class Channels:
    """The channels on which this process listens, each with its callbacks.

    A callback receives the payload. It returns True if no other process needs the hint.
    """

    def __init__(self, callbacks: Mapping[str, Callable[[str], object]] | None = None) -> None:
        self._callbacks: dict[str, list[Callable[[str], object]]] = {}
        self.listen(callbacks or {})

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the channels."""
        return iter(self._callbacks)

    def listen(self, callbacks: Mapping[str, Callable[[str], object]]) -> None:
        """Add a callback for each of these channels."""
        for channel, callback in callbacks.items():
            self._callbacks.setdefault(channel, []).append(callback)

    def deliver(self, channel: str, payload: str) -> bool:
        """Call the callbacks of `channel`; return True if there are any and each of them returns True."""
        results = [callback(payload) for callback in self._callbacks.get(channel, ())]
        return bool(results) and all(results)
