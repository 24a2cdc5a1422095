"""Errors of the loopback world, with a message that a developer can act on.

Error
├── tools.ToolError             a program is missing and cannot be installed
├── setup.SetupError            the dependencies cannot be installed
├── envtest.FetchError          the published programs of a control plane cannot be fetched
├── assets.AssetError           a program of the control plane cannot be had
├── children.ChildError         a server ended
├── patience.TooLong            an awaited event did not come
├── controlplane.KubectlError   kubectl refused
├── postgres.PostgresError      Postgres refused
├── world.WorldError            the world cannot be put together
├── background.BackgroundError  a process in the background does not come up, or does not end
├── node.builds.BuildError      an image cannot be built
└── node.requirements.RequirementError  the machine lacks what a real node needs
"""

from __future__ import annotations


class Error(Exception):
    """The base of all of them: the commands print it without a traceback."""
