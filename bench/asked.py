"""What the model was asked, from its log: all requests afterwards, or who was given a conclusion so far."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tarsy_dev import errors, oracle

from bench import model


class BenchError(errors.Error):
    """Something did not go as it must for its time to mean anything."""


Requests = list[dict[str, Any]]


def read(log: Path) -> dict[str, Requests]:
    """The model's requests, by investigation (namespace/name), in the order of their arrival."""
    found = defaultdict(list)
    for request in oracle.read(log):
        investigation, _, _ = request["key"]
        found[investigation].append(request)
    return found


def check(requests: Requests, *, stage: str) -> None:
    """Raise a BenchError unless these are all requests of one conversation of `stage`, each asked once."""
    expected = list(range(model.STAGES[stage].turns + 1))
    if [request["iteration"] for request in requests] != expected:
        raise BenchError(f"a conversation of {len(expected)} requests was expected, not {len(requests)}")


class Conclusions:
    """Which investigations the model has concluded; its log is read as it grows."""

    def __init__(self, log: Path) -> None:
        self._file = log.open(encoding="utf-8")
        self._begun = ""
        """A line whose end was not there yet."""
        self._concluding: dict[int, str] = {}
        """Investigations by the number of the request that the conclusion answers."""
        self._concluded: set[str] = set()

    def so_far(self) -> set[str]:
        """The investigations (namespace/name) whose conclusion was sent to its last byte."""
        for line in self._file:
            self._begun += line
            if line.endswith("\n"):
                self._note(json.loads(self._begun))
                self._begun = ""
        return self._concluded

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _note(self, fields: dict[str, Any]) -> None:
        if "key" in fields:
            investigation, stage, _ = fields["key"]
            if fields["iteration"] == model.STAGES[stage].turns:
                self._concluding[fields["number"]] = investigation
        elif fields["end"] == "completed" and fields["number"] in self._concluding:
            self._concluded.add(self._concluding[fields["number"]])
