"""Reports of tools on calls that are under way, kept."""

from __future__ import annotations


class Spoken:
    """A stream of an answer's calls."""

    def __init__(self) -> None:
        self.said: list[str] = []
        """Each piece behind its call's id."""

    def text(self, piece: str) -> None:
        """No answer is written here."""
        raise AssertionError(piece)

    def thinking(self, piece: str) -> None:
        """Nor is there a thought."""
        raise AssertionError(piece)

    def again(self) -> None:
        """Nor anything that would begin anew."""
        raise AssertionError

    def tool(self, call: str, piece: str) -> None:
        """Keep a piece."""
        self.said.append(f"{call}: {piece}")
