"""What can go wrong in the loopback world, with a message that a developer can act on.

Error
├── tools.ToolError             a program is missing and cannot be installed
├── setup.SetupError            the dependencies cannot be installed
├── assets.AssetError           a program of the control plane cannot be had
├── children.ChildError         a server ended, or is late
├── controlplane.KubectlError   kubectl refused
├── postgres.PostgresError      Postgres refused
├── world.WorldError            the world cannot be put together
└── local.LocalError            `make local` does not come up, or does not end
"""

from __future__ import annotations


class Error(Exception):
    """The base of all of them: the commands print it without a traceback."""
