"""The runbook: fetched once in an investigation, before its first stage, and read by all agents after that.

Its text is an entry of the log, so a takeover reads what earlier stages have read. If it cannot be fetched, the entry
says why, and the runbook of the platform file is used: an investigation needs none.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tarsy.agent import templates
from tarsy.transcript import entries, messages, ports, record

log = logging.getLogger(__name__)


async def ensure_read(*, runtime: ports.Runtime, journal: ports.Journal) -> None:
    """Fetch the runbook and commit it, unless it is in the log, or a stage has begun without it.

    If neither the alert nor the platform file has one, nothing is committed: agents read the built-in one.
    """
    so_far = journal.record.runs[entries.INVESTIGATION]
    if so_far.runbook or so_far.stages or so_far.ended:
        return
    url = journal.record.snapshot.runbook_url or ""
    with runtime.in_force() as now:
        default = messages.storable(runtime.secrets.mask(now.platform.defaults.runbook)).strip()
        if not url and not default:
            return
        read = entries.RunbookRead(url=url, origin="default" if default else "builtin", text=default or builtin())
        if url:
            await journal.ensure_lease()
            try:
                read = entries.RunbookRead(url=url, origin="url", text=await now.runbook(url))
            except ports.RunbookError as error:
                log.warning("the runbook cannot be read: %s", error, extra={"action": "runbook_failed"})
                read = replace(read, problem=str(error))
    await journal.commit(read)


def text(so_far: record.Record) -> str:
    """Return the runbook that agents read."""
    read = so_far.runs[entries.INVESTIGATION].runbook
    return read.text if read else builtin()


def builtin() -> str:
    """Return the runbook for alerts that have none."""
    return templates.text("runbook")
