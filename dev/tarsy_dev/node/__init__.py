"""A control plane and one real node, in namespaces of their own: `make node`.

Nothing of the machine's own network, containers and files is touched, and several can run side by side:

    supervisor                 on the machine: a socket on 127.0.0.1 for kubectl, the end of all when it ends
    └ init                     process 1 of a PID and mount namespace, whose /run, /var/lib and /var/log are its own
      ├ network `cluster`      etcd, API server, controllers, scheduler, and addresses outside the cluster
      └ network `node`         containerd, kubelet, kube-proxy, containers

The kernel ends every process, mount, interface and rule with init, and ends init with the supervisor, whatever ended
that. Folders of cgroups alone stay: a janitor outside waits for the supervisor's end and removes them.
"""

from __future__ import annotations

from tarsy_dev.node.command import main

__all__ = ["main"]
