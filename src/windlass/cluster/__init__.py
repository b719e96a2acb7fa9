"""The state of the cluster: its sources (manifests, the API server, the last known good state), and how it is read."""
