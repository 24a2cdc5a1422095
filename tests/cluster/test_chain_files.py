"""Chains in files, on a real API server: what is converted is taken, and what lint says of a form is what it says."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest
from support import manifests, mutations
from tarsy.cli.former import convert
from tarsy.config.check import lint
from tarsy.config.load import loader
from tarsy.resources import files
from tarsy_dev import tools
from tarsy_dev.controlplane import Administrator, KubectlError

FOUNDING = tools.ROOT / "tests/founding"


def test_chains_that_were_converted_are_taken(plane: Administrator, namespace: str) -> None:
    strategies = ["strategy-chains", "strategy-agents", "strategy-rest"]
    for names in (["security-incident"], strategies, ["tarsy", "llm-providers"]):
        documents = [document for name in names for document in files.read(FOUNDING / f"{name}.yaml")]
        made = convert.convert(documents)
        chains = [text for name, text in made.texts.items() if name != convert.PLATFORM]
        applied = plane.kubectl("apply", "-f", "-", namespace=namespace, input="---\n".join(chains))
        assert applied.count(" created\n") == len(chains)


def test_lint_and_the_api_server_refuse_the_same_forms(plane: Administrator, namespace: str) -> None:
    """Each mutation as an object of its own: the API server takes those that are wrong in names alone."""
    wrong = {
        f"name-{index}": mutation for index, mutation in enumerate(mutations.NAMES[:-1])
    }  # the last one is of another kind
    wrong |= {f"shape-{index}": mutation for index, mutation in enumerate(mutations.SHAPES)}
    texts = {name: mutations.mutated(mutations.CHAIN, old, new)[0] for name, (old, new, _) in wrong.items()}
    builtin = loader.platform_file(None)
    for name, text in texts.items():
        assert lint.problems(files.parse(text, file=name), platform=builtin)
    texts["good"] = mutations.CHAIN
    objects = [text.replace("name: pod-crash", f"name: {name}") for name, text in texts.items()]
    with pytest.raises(KubectlError) as error:
        plane.kubectl("create", "--dry-run=server", "-f", "-", namespace=namespace, input="---\n".join(objects))
    refused = str(error.value)
    assert refused.count("error when creating") + refused.count("no matches for kind") == len(mutations.SHAPES)
    assert "name-" not in refused
    assert "good" not in refused


def test_lint_and_the_api_server_refuse_the_same_patterns(plane: Administrator, namespace: str) -> None:
    """Each pattern as an object of its own; the servers of the platform file are known to lint alone."""
    random = Random(25)  # noqa: S311 - examples, the same each time
    tried = ["pods_l*", "*.[nodes_*", "*.pods_l*", "kubernetes-server.[ab]*", "*'\"", "*.[!]", "*.[!]]", "a" * 253]
    tried += ["".join(random.choices("[]!-*?.aé'\"\\\n ", k=random.randint(1, 8))) for _ in range(100)]
    objects = [
        manifests.chain(f"type-{number}", name=f"c-{number}", stages=[_denying(pattern)])
        for number, pattern in enumerate(tried)
    ]
    documents = [files.parse(json.dumps(made), file=made["metadata"]["name"])[0] for made in objects]
    problems = lint.problems(documents, platform=loader.platform_file(None))
    linted = {problem.file for problem in problems if "fits no tool of any MCP server" not in problem.message}
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    with pytest.raises(KubectlError) as error:
        plane.kubectl("create", "--dry-run=server", "-f", "-", namespace=namespace, input=listed)
    message = str(error.value)
    assert set(re.findall(r'AgentChain\.tarsy\.dev "(c-\d+)" is invalid', message)) == linted
    assert 20 < len(linted) < len(tried) - 20
    assert "'pods_l*' is not server.tool: write 'kubernetes-server.pods_l*' or '*.pods_l*'" in message
    assert "a [ is never closed: close it, as in [ab]" in message


def _denying(pattern: str) -> dict[str, Any]:
    return manifests.stage("look", agents=[{"name": "KubernetesAgent", "tools": {"deny": [pattern]}}], agent=None)
