"""The prompts, as files beside this one, with what is filled in as `{name}`."""

from __future__ import annotations

import functools
import re
from importlib import resources

_BLANK = re.compile(r"\{([a-z_]+)\}")


@functools.cache
def text(name: str) -> str:
    """The template of that name, as it is written."""
    return resources.files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8").strip()


def filled(name: str, **values: str) -> str:
    """The template with its blanks filled in; a KeyError names one that has no value. What is filled in is kept as is.

    Braces that are no blank stay: prompts show JSON.
    """
    return _BLANK.sub(lambda blank: values[blank[1]], text(name))
