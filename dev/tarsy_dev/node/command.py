"""`make node` and `make node-down`: a control plane and one real node in the background."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from tarsy_dev import assets, background, cache, tools
from tarsy_dev.node import machine, requirements


def main(arguments: Sequence[str]) -> int:
    """Run `node up`, `node down`, `node run` or `node needs`."""
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev node", description=__doc__)
    parser.add_argument(
        "--state", type=Path, default=tools.ROOT / ".node", help="where its files lie; .node by default"
    )
    actions = parser.add_subparsers(required=True, metavar="up|down|run|needs", dest="action")
    actions.add_parser("up", help="start it in the background; does nothing when it is up")
    actions.add_parser("down", help="end it and delete its data")
    actions.add_parser("run", help="run it in the foreground until SIGTERM")
    actions.add_parser("needs", help="print what this machine lacks for the tests on it; nothing, if it lacks nothing")
    parsed = parser.parse_args(arguments)
    node = Node(parsed.state.resolve())
    match parsed.action:
        case "up":
            node.up()
        case "down":
            node.down()
        case "run":
            node.run()
        case _:
            print(requirements.missing(images=True))
    return 0


class Node:
    """The node whose files lie in `state`."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._env = state / "env"
        arguments = ["node", "--state", str(state), "run"]
        self._supervisor = background.Supervisor(state, ready=self._env, arguments=arguments, what="the node")

    def up(self) -> None:
        """Start the supervisor, unless it runs, and return when pods can run."""
        requirements.check()
        for name in (*assets.PROGRAMS, *assets.NODE_PROGRAMS):
            assets.program(name)  # in the foreground, because it may take minutes and says so
        self._state.mkdir(exist_ok=True)
        start = time.monotonic()
        with self._supervisor.command():
            if self._supervisor.pid() is None:
                self._env.unlink(missing_ok=True)  # a supervisor that was killed has left it
                cache.say("starting a control plane and a node, which takes about 20 seconds")
                self._supervisor.start(timeout=240)
        print(f"The node is up after {time.monotonic() - start:.0f} s. Next:\n")
        print(f"  . {background.typed_path(self._env)} && kubectl get pods -A\n")
        print("It goes on in the background until 'make node-down'.")

    def down(self) -> None:
        """End the supervisor, which ends the node and deletes what it left."""
        if self._state.exists():
            with self._supervisor.command():
                self._supervisor.end()
            shutil.rmtree(self._state)

    def run(self) -> None:
        """Be the supervisor."""
        stop = background.StopSignals()
        self._state.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._supervisor.locked())
            running = stack.enter_context(machine.Machine(folder=self._state / f"node-{os.getpid()}"))
            programs = self._state / "bin"
            programs.mkdir(exist_ok=True)
            (programs / "kubectl").unlink(missing_ok=True)
            (programs / "kubectl").symlink_to(assets.program("kubectl"))
            lines = [
                "# For a shell that sources it. Gone with `make node-down`.",
                f"export KUBECONFIG={shlex.quote(str(running.kubeconfig()))}",
                f'export PATH={shlex.quote(str(programs))}:"$PATH"',
            ]
            draft = self._env.with_suffix(".draft")
            draft.write_text("\n".join(lines) + "\n")
            draft.rename(self._env)
            stack.callback(self._env.unlink, missing_ok=True)
            while not stop.wait(1):
                running.check()
