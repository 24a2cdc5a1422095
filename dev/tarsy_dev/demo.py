"""`make demo`: one recorded alert, investigated on embedded parts, from an empty machine to analysis and summary.

Everything is real but the pods, which no kubelet runs (`tarsy_dev.shop`), and the model, which is scripted unless a key
is set, such as GOOGLE_API_KEY: the scripted one speaks Gemini's protocol over loopback, so that SDK and wire are real
in any case.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tarsy_dev import errors, local, shop, tools, world

T = TypeVar("T")

STATE = tools.ROOT / ".demo"
FILES = tools.ROOT / "dev" / "demo"
CHAINS = tools.ROOT / "manifests" / "chains"
LONGEST = 600.0  # seconds that the investigation may take; a real model takes its time


class DemoError(errors.Error):
    """The demo cannot go on."""


def main(arguments: Sequence[str]) -> int:
    """Run the demo; 0 only if the investigation completed."""
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running afterwards")
    keep = parser.parse_args(arguments).keep
    world = local.Local(STATE, demo=True)
    try:
        world.up()
        return _investigate(_Shell(world.environment()), keep=keep)
    finally:
        if not keep:
            world.down()


class _Shell:
    """kubectl and the API, as a user with `.dev/demo/env` sourced has them."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    @property
    def api(self) -> str:
        """The address of the API and the pages."""
        return self._environment["TARSY_API"]

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - subprocess's own name for it
        command = ["kubectl", *arguments]
        done = subprocess.run(command, input=input, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DemoError(f"'{' '.join(command)}' failed: {done.stderr.strip()}")
        return done.stdout

    def post(self, path: str, body: bytes) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the operator's own address
            self._environment["TARSY_API"] + path,
            data=body,
            headers={
                "Authorization": f"Bearer {self._environment['TARSY_WEBHOOK_TOKEN']}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - as above
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            raise DemoError(f"POST {path}: {error.code} {error.read().decode()}") from error


def _investigate(shell: _Shell, *, keep: bool) -> int:
    model = world.real_provider() or "the scripted model (set GOOGLE_API_KEY or the like for a real one)"
    print(f"The model is {model}.")
    shell.kubectl("apply", "--filename", str(CHAINS), "--filename", str(FILES / "chain.yaml"))
    shop.seed(shell.kubectl, FILES / "shop.yaml")
    print("Seeded namespace shop, where pod web-0 is in CrashLoopBackOff.")

    receipt = shell.post("/api/v1/webhooks/alertmanager", (FILES / "notification.json").read_bytes())
    (alert,) = receipt["alerts"]
    if (name := alert["name"]) is None:
        raise DemoError(f"the alert was not taken: {alert['reason']}")
    print(f"Posted alert {alert['alertname']}; it is investigated as {name}.\n")

    progress = _Progress()
    status = _wait(lambda: _ended(shell, name, progress), what=f"the end of {name}", timeout=LONGEST)
    progress.end()
    _report(shell, name, status)
    if keep:
        print(
            f"\nEverything goes on until 'make local-down'. The pages are at {shell.api}/. To look around:\n\n"
            "  . .demo/env\n"
            "  tarsy open                # signs your browser in, and shows all investigations\n"
            f"  tarsy open {name}\n"
            "  tarsy open --no-browser   # prints an address that signs in a browser of this machine, once\n"
            "  kubectl get inv\n\n"
            "Workloads do not run here: what you create stays as it is. 'make local' has simulated nodes that run pods."
        )
    return 0 if status["phase"] == "Completed" else 1


def _ended(shell: _Shell, name: str, progress: _Progress) -> dict[str, Any] | None:
    manifest = json.loads(shell.kubectl("get", "alertinvestigations", name, "--output=json"))
    status: dict[str, Any] = manifest["status"]
    if "phase" not in status:
        return None
    progress.show(status)
    finished = any(condition["type"] == "Finished" for condition in status["conditions"])
    return status if finished else None


class _Progress:
    """One line that changes on a terminal; a line for each change elsewhere."""

    def __init__(self) -> None:
        self._last = ""
        self._terminal = sys.stdout.isatty()

    def show(self, status: dict[str, Any]) -> None:
        usage = status["usage"]
        stage = f"stage {status['currentStage']}, " if status.get("currentStage") else ""
        line = (
            f"{status['phase']}: {stage}{status['progress']} stages, {usage['llmCalls']} model calls, "
            f"{usage['toolCalls']} tool calls, {usage['totalTokens']} tokens"
        )
        if line != self._last:
            print(f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n", flush=True)
            self._last = line

    def end(self) -> None:
        if self._terminal:
            print()


def _report(shell: _Shell, name: str, status: dict[str, Any]) -> None:
    print(f"\n{shell.kubectl('get', 'alertinvestigations', name, '--output=wide')}")
    print(f"{'STAGE':24}{'PHASE':12}{'AGENTS':>8}{'ITERATIONS':>12}{'TOOL CALLS':>12}{'TOKENS':>10}")
    for stage in status["stages"]:
        numbers = f"{stage['iterations']:>12}{stage['toolCalls']:>12}{stage['tokens']:>10}"
        print(f"{stage['name']:24}{stage['phase']:12}{stage.get('agents', ''):>8}{numbers}")
    print(f"\n{status.get('finalAnalysis') or status.get('message', '')}")
    if status.get("summary"):
        print(f"In short:\n{status['summary']}")
    for condition in status["conditions"]:
        if condition["type"] == "Grounded":
            print(f"\nGrounded: {condition['status']} ({condition['reason']})")
    for gap in status.get("gaps", []):
        print(f"Not inspected: {gap['tool']}: {gap['reason']}")


def _wait(look: Callable[[], T | None], *, what: str, timeout: float) -> T:
    deadline = time.monotonic() + timeout
    while (outcome := look()) is None:
        if time.monotonic() > deadline:
            raise DemoError(f"waited {timeout:g} s in vain for {what}; the logs are in .demo")
        time.sleep(0.2)
    return outcome
