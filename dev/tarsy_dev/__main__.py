"""`python -m tarsy_dev COMMAND ...`: hands over to the module of that name, which has the rest."""

from __future__ import annotations

import importlib
import sys

from tarsy_dev import errors

COMMANDS = {
    "assets": "find, build or fetch what is not Python",
    "demo": "investigate one recorded alert and print the analysis",
    "generate": "write what is generated from the code, or check it",
    "local": "start and end a local cluster, database and model to run the operator against",
    "nightly": "run the tests that no change waits for",
    "node": "start and end a control plane and one real node to look at",
    "setup": "install the hash-locked dependencies",
}


def main() -> int:
    """Run the command that the first argument names."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print("usage: python -m tarsy_dev COMMAND ...\n", file=sys.stderr)
        for name, purpose in COMMANDS.items():
            print(f"  {name:10}{purpose}", file=sys.stderr)
        return 2
    command = importlib.import_module(f"tarsy_dev.{sys.argv[1]}")
    try:
        return int(command.main(sys.argv[2:]))
    except errors.Error as error:
        print(f"tarsy_dev: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tarsy_dev: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
