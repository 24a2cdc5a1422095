"""An answer without what this process was given: a gateway may have put our own key into it."""

from __future__ import annotations

from dataclasses import replace

from tarsy.masking import given
from tarsy.transcript import messages


def message(original: messages.Message) -> messages.Message:
    """`original` without it, in all that is stored, shown or sent back."""
    state = original.provider_state
    return replace(
        original,
        text=given.KNOWN.text(original.text),
        thinking=given.KNOWN.text(original.thinking),
        calls=tuple(
            replace(call, name=given.KNOWN.text(call.name), arguments=given.KNOWN.text(call.arguments))
            for call in original.calls
        ),
        native=tuple(
            replace(result, content=given.KNOWN.text(result.content), details=given.KNOWN.json(result.details))
            for result in original.native
        ),
        provider_state=state and replace(state, data=given.KNOWN.json(state.data)),
    )
