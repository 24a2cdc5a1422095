"""Keys by which a call is recognised: investigation, stage, agent, kind, iteration and place.

Everything is taken from what a model is sent, and nothing from headers or from tarsy's own ids: the oracle of the fault
tests must not depend on the program that it judges. The lines that tarsy's prompts contain are matched here and nowhere
else.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["agent", "synthesis", "summary", "chat", "tool_summary"]
"""The purpose of a request."""

AGENT_LINE = re.compile(
    r"^You are (?P<agent>.+?), the agent of (?:stage '(?P<stage>[^'\n]*)' of )?chain '(?P<chain>[^'\n]*)'\.",
    re.MULTILINE,
)
"""Matched in the system instruction."""

INVESTIGATION_LINE = re.compile(r"^Investigation: (?P<investigation>\S+/\S+)[ \t\r]*$", re.MULTILINE)
"""Matched in the first user message; its first occurrence counts, so that an alert's text cannot take its place."""

_LAST_WORDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("synthesis", re.compile(r"^Join the results of the agents of stage '[^'\n]*'\.\Z", re.MULTILINE)),
    ("summary", re.compile(r"^Sum up this investigation\.\Z", re.MULTILINE)),
    ("tool_summary", re.compile(r"^Sum up this result of \S+ in fewer than [\d,]+ tokens\.\Z", re.MULTILINE)),
)
"""The last line of the first user message, which tarsy alone writes."""

_QUESTION = re.compile(
    r"<!-- DATA (?P<word>\w+) START -->\n(?P<question>(?:(?!<!-- DATA ).)*)\n<!-- DATA (?P=word) END -->\n\n"
    r"Answer the question that stands between the last two markers\.\Z",
    re.DOTALL,
)
"""The last block of data, and the last line behind it."""

_SEPARATOR = "|"  # in no name of Kubernetes, and not in a stage's or an agent's


class Key(NamedTuple):
    """Which execution a request belongs to; a part that its prompts do not tell is empty."""

    investigation: str = ""  # namespace/name
    stage: str = ""
    agent: str = ""


class CallKey(NamedTuple):
    """Which tool call of which answer: what the scripted model puts into a call's `key` argument."""

    investigation: str
    stage: str
    agent: str
    iteration: int
    call: int
    """Its place among the calls of the answer."""

    @property
    def execution(self) -> Key:
        """The execution that the call belongs to."""
        return Key(self.investigation, self.stage, self.agent)

    def __str__(self) -> str:
        return _SEPARATOR.join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> CallKey:
        """Read what `str()` wrote; ValueError if it is something else."""
        parts = text.split(_SEPARATOR)
        if len(parts) != len(cls._fields):
            message = f"not the key of a call: {text!r}; expected investigation|stage|agent|iteration|call"
            raise ValueError(message)
        investigation, stage, agent, iteration, call = parts
        return cls(investigation, stage, agent, int(iteration), int(call))


def find(*, system: str, first_user: str) -> Key:
    """The key that a conversation's system instruction and first user message tell."""
    agent = AGENT_LINE.search(system)
    investigation = INVESTIGATION_LINE.search(first_user)
    return Key(
        investigation=investigation["investigation"] if investigation else "",
        stage=(agent["stage"] or "") if agent else "",
        agent=agent["agent"] if agent else "",
    )


def kind(*, system: str, first_user: str) -> Kind:
    """Return the purpose of a conversation; an agent's where nothing says otherwise."""
    for kind, last_words in _LAST_WORDS:
        if last_words.search(first_user):
            return kind
    agent = AGENT_LINE.search(system)
    return "chat" if agent and not agent["stage"] and question(first_user) else "agent"


def question(first_user: str) -> str:
    """The question that a chat is asked; "" where there is none."""
    asked = _QUESTION.search(first_user)
    return asked["question"].strip() if asked else ""
