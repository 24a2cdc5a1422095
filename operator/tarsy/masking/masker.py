"""The masker, which masks every alert and every tool result before it is stored or sent."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Sequence

from tarsy.masking import (
    budgets,
    custom_patterns,
    known_secrets,
    lookalikes,
    markers,
    repeats,
    secret_patterns,
    structure,
)
from tarsy.telemetry import metrics

WITHHELD = "[withheld: it could not be masked]"
"""The replacement of a text whose masking failed."""
_PREFIX = markers.PREFIX.decode()
_PASSES = 8
_FREE_STEPS = 150_000
_STEPS_A_PASS, _STEPS = 0.5, 0.65
"""Steps for each byte. Output of clusters takes 0.1 to 0.7 in two passes; nothing but Secrets takes the most."""
_MEGABYTE = 1_000_000
_SECONDS, _SECONDS_A_MEGABYTE = 2.0, 0.5
REMEMBERED_MAX, REMEMBERED_CHARACTERS = 4096, 1024
"""Texts that `remembered` keeps, and the maximum length of each."""

log = logging.getLogger(__name__)


class Masker:
    """Masks known secrets and Kubernetes' Secrets in texts, and the matches of the chosen patterns."""

    def __init__(
        self,
        *,
        groups: Iterable[secret_patterns.Group] = (),
        names: Iterable[secret_patterns.Name] = (),
        own: Sequence[custom_patterns.CustomPattern] = (),
        fingerprints: bool = False,
        secrets: known_secrets.KnownSecrets | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Choose patterns by groups and by names, and add `own` ones; `secrets` are the known secrets.

        The `clock` counts the processor's time: a text is not withheld because the machine is busy with other work.

        With `fingerprints` the markers in texts of an investigation have fingerprints (see `text`).
        """
        self._names = secret_patterns.chosen(groups, names)
        self._own = tuple(own)
        self._fingerprints = fingerprints
        self._secrets = secrets or known_secrets.KnownSecrets()
        self._clock = clock

    def text(self, text: str, *, investigation: str = "") -> str:
        """Return `text` with markers, such as `[MASKED:password]`, in the place of secrets.

        Masking twice changes nothing. Any text takes time linear in its length; a text that cannot be parsed is read as
        plain text. A text that exceeds its budget, or takes the processor more than 2 s and 0.5 s for each megabyte
        beyond the first, is replaced by `withheld`. Mask more than 64 KB in a thread.

        With the id of an `investigation`, a masker with fingerprints adds them to markers, `[MASKED:password:7f3a]`: a
        secret has one fingerprint in all texts of an investigation.

        A text with invisible letters, or lookalikes of ASCII letters, is searched twice. If only the second search
        finds a secret, the normalised text is returned.
        """
        doc = text.encode("utf-8", "surrogatepass")
        key = self._secrets.fingerprint_key(investigation) if self._fingerprints and investigation else b""
        try:
            masked = self._masked(doc, key=key).decode("utf-8", "surrogatepass")
            plain = lookalikes.normalize(masked)
            if plain != masked:
                bare = plain.encode("utf-8", "surrogatepass")
                masked_text = self._masked(bare, key=key)
                if masked_text != bare:
                    masked = masked_text.decode("utf-8", "surrogatepass")
        except budgets.BudgetExceededError:
            metrics.WITHHELD.add("budget")
            return withheld(len(doc))
        if (hits := masked.count(_PREFIX) - text.count(_PREFIX)) > 0:
            metrics.MASKED.add(amount=hits)
        return masked

    def _masked(self, doc: bytes, *, key: bytes) -> bytes:
        size = len(doc)
        seconds = _SECONDS + _SECONDS_A_MEGABYTE * max(0, size - _MEGABYTE) / _MEGABYTE
        budget = budgets.Budget(_FREE_STEPS + int(_STEPS * size), clock=self._clock, seconds=seconds)
        repeated = repeats.Repeats(budget, key=key)
        for _ in range(_PASSES):
            budget.begin(_FREE_STEPS + int(_STEPS_A_PASS * size))
            masked = self._secrets.mask_bytes(doc)
            masked = structure.mask(masked, budget, repeated)
            for custom_pattern in self._own:
                budget.check_time()
                masked = repeated.apply(masked, custom_pattern.find(masked, budget))
            masked = repeated.mask(secret_patterns.mask(masked, self._names, budget, repeated))
            budget.check_time()
            if masked == doc:
                return doc
            doc = masked
        raise budgets.BudgetExceededError


def or_withheld(mask: Callable[[str], str], text: str) -> str:
    """Return the masked `text`, or WITHHELD if masking fails: a text that is not masked is not passed on."""
    try:
        return mask(text)
    except Exception as error:  # noqa: BLE001 - no defect of ours may let a secret through
        # Not the error itself, nor its traceback: they may quote the text.
        log.error("a text could not be masked: %s", type(error).__name__, extra={"action": "masking_failed"})  # noqa: TRY400
        metrics.WITHHELD.add("error")
        return WITHHELD


def remembered(mask: Callable[[str], str]) -> Callable[[str], str]:
    """Return `mask` with its latest answers to short texts kept: alerts of a notification have many labels alike."""
    short = functools.lru_cache(REMEMBERED_MAX)(mask)

    def masked(text: str) -> str:
        return short(text) if len(text) <= REMEMBERED_CHARACTERS else mask(text)

    return masked


def withheld(size: int) -> str:
    """Return the replacement of a text of `size` bytes that was not masked within its budget."""
    return f"[MASKED:withheld] (all {size} bytes: there was no time to look through a text like this one)"


def is_withheld(masked: str, text: str) -> bool:
    """Return whether `masked` is the replacement of a `text` that was not masked within its budget."""
    return masked == withheld(len(text.encode("utf-8", "surrogatepass")))
