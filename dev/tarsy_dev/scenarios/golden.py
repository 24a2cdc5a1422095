"""A script for the scripted model that solves scenarios: it makes the calls of the evidence, and says the cause.

It knows the answers, so what is measured with it is the harness: whether what the tools show reaches a model, and what
must stay secret does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tarsy.evaluation import causes, checks, scenarios, worlds

from tarsy_dev.model import script

SENTENCES: Mapping[causes.CauseClass, str] = {
    "image-missing": "the image does not exist",
    "out-of-memory": "it is OOMKilled",
    "probe-wrong": "it has a wrong readiness probe",
    "configuration-wrong": "there is a misconfiguration",
    "configuration-missing": "it needs a missing ConfigMap",
    "credentials-wrong": "it has a wrong password",
    "application-error": "there is an application bug",
    "quota-exceeded": "the quota is exceeded",
    "disruption-budget": "the PDB blocks it",
    "node-pressure": "there is disk pressure",
    "node-down": "the node is down",
    "taint": "there is a taint",
    "insufficient-resources": "there is insufficient cpu",
    "volume": "the PVC is pending",
    "dns": "DNS fails",
    "selector-mismatch": "it has a wrong selector",
    "certificate-expired": "there is an expired certificate",
    "metrics-missing": "the metrics API is missing",
    "jobs-pile-up": "the jobs pile up",
    "dependency-down": "the database is down",
    "rollout-incomplete": "there is a stuck rollout",
    "noisy-neighbour": "there is a noisy neighbour",
    "network-policy": "a network policy blocks it",
    "nothing": "nothing is wrong",
}
"""A sentence that claims each class, and no other."""


def player(all_scenarios: Sequence[scenarios.Scenario]) -> script.Script:
    """Return the script for these scenarios, which it tells apart by the namespaces of their alerts."""
    opened = {each.name: worlds.load(each.world) for each in all_scenarios}

    def answer(model_call: script.Turn) -> script.Answer:
        asked = "\n".join(message.text for message in model_call.messages if message.role == "user")
        if asked.startswith("Judge whether"):
            return script.Answer(text="VERDICT: right\nIt names the cause.")
        scenario = next(each for each in all_scenarios if f'"{each.document.alert.labels["namespace"]}"' in asked)
        results = [result for message in model_call.messages for result in message.results]
        if model_call.kind == "agent" and not results:
            names = {tool.short: tool.name for tool in model_call.tools}
            return script.Answer(
                text="I look at what the alert is about.",
                calls=tuple(
                    script.Call(name=names[each.tool], args=checks.resolved(each.arguments, opened[scenario.name]))
                    for each in scenario.document.evidence
                ),
            )
        cause = scenario.document.cause
        lines = [f"Root cause: {cause.kind} {cause.name}: {SENTENCES[cause.cause_class]}.", "", "Evidence:", ""]
        lines += [f"- {' '.join(result.text.split())} {result.reference}" for result in results]
        return script.Answer(text="\n".join(lines))

    return answer
