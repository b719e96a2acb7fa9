"""The source of the cluster's objects for the agents: a folder of manifests, or a real Kubernetes control plane."""
