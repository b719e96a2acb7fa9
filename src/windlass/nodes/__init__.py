"""The state of one Node, computed from its configuration, the cluster's objects and what the Node itself holds."""
