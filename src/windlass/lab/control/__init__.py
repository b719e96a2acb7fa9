"""Where the agents get the cluster's objects from: a folder of manifests, or a real Kubernetes control plane."""
