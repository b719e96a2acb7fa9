"""Brings a running cluster to the state that a scenario's step asks for: machines, Nodes, Pods, actions."""
