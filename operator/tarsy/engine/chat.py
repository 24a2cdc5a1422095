"""One question about an investigation that has ended: a placeholder, which asks the model once."""

from __future__ import annotations

from tarsy.config import resolve
from tarsy.transcript import entries, messages, ports, record


async def run(*, runtime: ports.Runtime, journal: ports.Journal, run: int) -> None:
    """Run, or go on with, the question of that run until it has ended, or is to stand still."""
    identity = record.execution_id(journal.record.snapshot.id, run=run, stage="", kind="chat", index=0)
    snapshot = journal.record.snapshot
    (stage, *_) = snapshot.chain.stages
    agent = resolve.agent_for(
        runtime.platform, chain_name=snapshot.chain_name, chain=snapshot.chain, stage=stage, member=stage.members[0]
    )
    if journal.suspended():
        return
    if identity not in journal.record.executions:
        question = messages.Message(role="user", text=journal.record.runs[run].question)
        await journal.commit(
            entries.ExecutionStarted(
                run=run,
                stage="",
                execution=identity,
                kind="chat",
                index=0,
                name="ChatAgent",
                agent=agent,
                messages=(question,),
            )
        )
    execution = journal.record.executions[identity]
    request = ports.Request(tools=(), messages=tuple(messages.conversation(execution.log)))
    scope = ports.Scope(execution=identity, ensure_lease=journal.ensure_lease)
    try:
        answer = await runtime.model(agent.provider).ask(request, scope)
    except ports.ModelError as error:
        await journal.commit(
            entries.Unanswered(execution=identity, turn=0, failure=error.failure, call=error.call),
            entries.ExecutionEnded(execution=identity, outcome="Failed", error=error.failure.text),
            entries.RunEnded(run=run, ending="Failed", reason="NotAnswered", message=error.failure.text),
        )
        return
    await journal.commit(
        entries.Answered(execution=identity, turn=0, messages=(answer.message,), call=answer.call),
        entries.ExecutionEnded(execution=identity, outcome="Completed"),
        entries.RunEnded(run=run, ending="Completed", reason="Answered", final_analysis=answer.message.text),
    )
