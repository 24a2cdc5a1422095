"""The templates of prompts: Markdown files in this directory, with placeholders such as `{name}`."""

from __future__ import annotations

import functools
import re
from importlib import resources

_BLANK = re.compile(r"\{([a-z_]+)\}")


@functools.cache
def text(name: str) -> str:
    """Return the text of a template."""
    return resources.files(__name__).joinpath(f"{name}.md").read_text(encoding="utf-8").strip()


def fill(name: str, **values: str) -> str:
    """Return a template with its blanks filled in; a KeyError names a blank without a value.

    Other braces stay, because prompts show JSON; so do braces in values.
    """
    return _BLANK.sub(lambda blank: values[blank[1]], text(name))
