"""Names and addresses of the node and of what it reaches. Each node has the same, in networks of its own."""

from __future__ import annotations

NODE = "node-0"
"""The node's name, as its certificate has it (`tarsy_dev.certificates`)."""
NODE_ADDRESS = "172.30.0.2"
CONTROL_PLANE = "172.30.0.1"
"""Where nodes and pods reach the API server; a machine apart, as in a cluster."""
LINK = 24
"""The length of the prefix of the network between the two."""
OUTSIDE = "203.0.113.1"
"""An address outside the cluster, of the control plane's machine: all that there is of the internet."""
OUTSIDE_NETWORK = "203.0.113.0/24"
PODS = "10.244.0.0/24"
DNS = "10.96.0.10"
"""The ClusterIP of CoreDNS, in `controlplane.SERVICES`."""
