"""Where the state of the cluster comes from: manifests, the last known good state; and how a Node reads it."""
