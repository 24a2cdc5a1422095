"""The runbook: fetched once an investigation, before its first stage, and read by all that follow.

What it came to is an entry of the log, so a takeover reads what the stages before it have read. A runbook that cannot
be had is told, and the platform file's stands for it: an investigation needs none.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tarsy.agent import templates
from tarsy.masking import known_secrets
from tarsy.transcript import entries, messages, ports, record

log = logging.getLogger(__name__)


async def ensure_read(*, runtime: ports.Runtime, journal: ports.Journal) -> None:
    """Have the runbook in the log, unless it is there, or a stage has begun without it.

    Where the alert names none, and the platform file has none, there is nothing to be kept.
    """
    so_far = journal.record.runs[entries.INVESTIGATION]
    if so_far.runbook or so_far.stages or so_far.ended:
        return
    url = journal.record.snapshot.runbook_url or ""
    with runtime.in_force() as now:
        own = messages.storable(known_secrets.KNOWN.text(now.platform.defaults.runbook)).strip()
        if not url and not own:
            return
        read = entries.RunbookRead(url=url, origin="default" if own else "builtin", text=own or builtin())
        if url:
            read = await _fetched(read, runtime=now, journal=journal)
    await journal.commit(read)


async def _fetched(
    instead: entries.RunbookRead, *, runtime: ports.Runtime, journal: ports.Journal
) -> entries.RunbookRead:
    await journal.ensure_lease()
    try:
        text = await runtime.runbook(instead.url)
    except ports.RunbookError as error:
        log.warning("the runbook cannot be read: %s", error, extra={"action": "runbook_failed"})
        return replace(instead, problem=str(error))
    return entries.RunbookRead(url=instead.url, origin="url", text=text)


def text(so_far: record.Record) -> str:
    """Return the runbook that agents read."""
    read = so_far.runs[entries.INVESTIGATION].runbook
    return read.text if read else builtin()


def builtin() -> str:
    """The runbook for alerts that have none."""
    return templates.text("runbook")
