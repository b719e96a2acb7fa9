"""A whole Kubernetes on this machine: Nodes with a kubelet and a container runtime each, Windlass from its chart."""
