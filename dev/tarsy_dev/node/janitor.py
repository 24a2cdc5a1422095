"""The process that outlives a killed supervisor, and removes what the kernel does not: files, and folders of cgroups.

`python -m tarsy_dev.node.janitor DESCRIPTOR FOLDER CGROUP` is started by `machine.Machine`. It waits until the other
end of the pipe is closed, which the kernel does with the last process that holds it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tarsy_dev.node import cgroups


def main() -> None:
    """Wait, and remove what is left."""
    descriptor, folder, cgroup = sys.argv[1:]
    while os.read(int(descriptor), 1):
        pass
    cgroups.remove(cgroup)
    shutil.rmtree(Path(folder), ignore_errors=True)


if __name__ == "__main__":
    main()
