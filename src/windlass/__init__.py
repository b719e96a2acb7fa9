"""Windlass: the network of a Kubernetes Node on Open vSwitch."""

__version__ = "0.1.0"
