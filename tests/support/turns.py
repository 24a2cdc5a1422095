"""Investigations of several chains in the queue."""

from __future__ import annotations

from support import queue
from tarsy.resources import chains
from tarsy.store.base import databases


def named(name: str, **spec: int) -> chains.AgentChain:
    chain = queue.chain(**spec)
    return chain.model_copy(update={"metadata": chain.metadata.model_copy(update={"name": name})})


async def admit(database: databases.Database, chain: chains.AgentChain, number: int = 1, *, priority: int = 0) -> None:
    for _ in range(number):
        await queue.admit(database, queue.subject(priority=priority), chain=chain)
