"""A whole Kubernetes cluster on this machine: Nodes with kubelet and container runtime, Windlass from its chart."""
