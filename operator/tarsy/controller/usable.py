"""Whether workers can use the LLM providers that a chain asks first.

This is a condition of its own. A provider that all workers report as unusable also makes the chain not Ready
(`config.check.chain_index`). One that only some workers report, or none has reported yet, keeps no alert from the
chain: the alert waits for a worker that can run it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tarsy.config.check import worker_reports
from tarsy.controller import reach

CONDITION = "ProvidersUsable"


def verdict(needed: Sequence[str], workers: worker_reports.Workers) -> reach.Verdict:
    """The verdict on the providers `needed`, of which there is at least one."""
    unusable, silent = [], []
    for name in needed:
        problems = workers.reports.get(name, ())
        if reasons := "; ".join(dict.fromkeys(filter(None, problems))):
            count = sum(map(bool, problems))
            where = "" if count == workers.count else f" (in {count} of {workers.count} workers)"
            unusable.append(f"LLM provider '{name}'{where} cannot be used: {reasons}")
        elif not problems:
            silent.append(f"no worker has said yet whether LLM provider '{name}' can be used; alerts wait")
    if unusable:
        return reach.Verdict(status="False", reason="ProviderUnusable", message="; ".join(unusable))
    if silent:
        return reach.Verdict(status="Unknown", reason="NoWorker", message="; ".join(silent))
    return reach.Verdict(status="True", reason=CONDITION)
