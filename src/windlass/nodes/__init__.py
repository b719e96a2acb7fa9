"""One Node's state, worked out from its configuration, the cluster's objects and what the Node itself holds."""
