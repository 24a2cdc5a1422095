"""`make local` and `make local-down`: a world in the background, to run the operator against as often as one likes.

One supervisor has it (`tarsy_dev.background`). When a server of the world ends, it ends the rest and says so in its
log: half a world would only make riddles.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tarsy_dev import assets, background, cache, tools, world


def main(arguments: Sequence[str]) -> int:
    """Run `local up`, `local down` or `local run`."""
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev local", description=__doc__)
    parser.add_argument("--state", type=Path, default=tools.ROOT / ".dev", help="where its files lie; .dev by default")
    parser.add_argument("--demo", action="store_true", help="run an operator as well, and no workloads")
    actions = parser.add_subparsers(required=True, metavar="up|down|run")
    actions.add_parser("up", help="start it in the background; does nothing when it is up").set_defaults(do=Local.up)
    actions.add_parser("down", help="end it and delete its data").set_defaults(do=Local.down)
    actions.add_parser("run", help="run it in the foreground until SIGTERM").set_defaults(do=Local.run)
    parsed = parser.parse_args(arguments)
    world = Local(parsed.state.resolve(), demo=parsed.demo)
    parsed.do(world)
    if parsed.do is Local.up:
        print(f"The local world is up; its logs are in {background.typed_path(world.state)}. Next:\n")
        print(f"  . {background.typed_path(world.env)} && tarsy operator\n")
        print("It goes on in the background until 'make local-down'.")
    return 0


class Local:
    """The local world whose files lie in `state`.

    That of the demo has an operator as well, and a control plane that runs no workloads: it takes fewer programs.
    """

    def __init__(self, state: Path, *, demo: bool = False) -> None:
        self.state = state
        self._demo = demo
        self.env = state / "env"
        """The shell file that says where everything is; it exists while the world is ready."""
        more = ["--demo"] if demo else []
        arguments = ["local", "--state", str(state), *more, "run"]
        self._supervisor = background.Supervisor(state, ready=self.env, arguments=arguments, what="the local world")

    def up(self) -> None:
        """Start the supervisor, unless it runs, and return when the world is ready."""
        if self._demo:  # in the foreground, because it may take minutes and says so
            assets.demo()
        else:
            assets.everything()
        self.state.mkdir(exist_ok=True)
        with self._supervisor.command():
            if self._supervisor.pid() is None:
                self._clean()
                cache.say("starting Kubernetes, Postgres and the scripted model, which takes about 10 seconds")
                self._supervisor.start(timeout=120)

    def down(self) -> None:
        """End the supervisor, which ends the world, and delete what it left."""
        if not self.state.exists():
            return
        with self._supervisor.command():
            self._supervisor.end()
            self._clean()

    def environment(self) -> dict[str, str]:
        """The environment of a shell that has read `env`."""
        command = ["bash", "-c", 'set -a && . "$0" && env -0', str(self.env)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)

    def run(self) -> None:
        """Be the supervisor."""
        stop = background.StopSignals()
        self.state.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._supervisor.locked())
            running = stack.enter_context(world.running(self.state, workloads=not self._demo))
            env = running.env
            if self._demo:
                env = stack.enter_context(world.operating(running, logs=self.state / "logs"))
            draft = self.env.with_suffix(".draft")
            draft.touch(mode=0o600)
            draft.write_text(_shell(env))
            draft.rename(self.env)
            try:
                while not stop.wait(1):
                    running.check()
            finally:
                self.env.unlink()

    def _clean(self) -> None:
        """Delete everything but the files of locks, which are only good as long as everybody has the same."""
        database = self.state / world.DATABASE
        if database.is_symlink():
            shutil.rmtree(database.resolve(), ignore_errors=True)  # it is there when the supervisor was killed
        for path in self.state.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.suffix != ".lock":
                path.unlink()


def _shell(env: Mapping[str, str]) -> str:
    lines = ["# For a shell that sources it. Gone with `make local-down`."]
    for name, value in env.items():
        before = ':"$PATH"' if name == "PATH" else ""
        lines.append(f"export {name}={shlex.quote(value)}{before}")
    return "\n".join(lines) + "\n"
