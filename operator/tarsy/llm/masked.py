"""An answer without what this process was given: a gateway may have put our own key into it."""

from __future__ import annotations

from dataclasses import replace

from tarsy.masking import given
from tarsy.transcript import messages


def message(said: messages.Message) -> messages.Message:
    """`said` without it, in all that is stored, shown or sent back."""
    state = said.provider_state
    return replace(
        said,
        text=given.KNOWN.text(said.text),
        thinking=given.KNOWN.text(said.thinking),
        calls=tuple(
            replace(call, name=given.KNOWN.text(call.name), arguments=given.KNOWN.text(call.arguments))
            for call in said.calls
        ),
        native=tuple(
            replace(one, content=given.KNOWN.text(one.content), details=given.KNOWN.json(one.details))
            for one in said.native
        ),
        provider_state=state and replace(state, data=given.KNOWN.json(state.data)),
    )
