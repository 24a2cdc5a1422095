"""An answer without what this process was given: a gateway may have put our own key into it."""

from __future__ import annotations

from dataclasses import replace

from tarsy.masking import known_secrets
from tarsy.transcript import messages


def message(original: messages.Message) -> messages.Message:
    """`original` without it, in all that is stored, shown or sent back."""
    state = original.provider_state
    return replace(
        original,
        text=known_secrets.KNOWN.text(original.text),
        thinking=known_secrets.KNOWN.text(original.thinking),
        calls=tuple(
            replace(call, name=known_secrets.KNOWN.text(call.name), arguments=known_secrets.KNOWN.text(call.arguments))
            for call in original.calls
        ),
        native=tuple(
            replace(
                result,
                content=known_secrets.KNOWN.text(result.content),
                details=known_secrets.KNOWN.json(result.details),
            )
            for result in original.native
        ),
        provider_state=state and replace(state, data=known_secrets.KNOWN.json(state.data)),
    )
