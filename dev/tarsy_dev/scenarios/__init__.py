"""Records the worlds of `scenarios/`: objects, events and logs of a real API server with its real controllers.

Deployments, ReplicaSets, EndpointSlices, quotas and the scheduler are real, and write what they write anywhere. The
kubelets are simulated (`kubelets`): a seed (`dev/scenarios/NAME.yaml`) says in which state containers are, and what
they log; statuses go through the status subresource, and logs through the API server, as a kubelet's do. The ages of
objects are set in etcd (`cluster.Cluster.set_age`), because an API server gives every object the present time.
"""
