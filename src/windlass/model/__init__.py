"""Frozen, typed state of the cluster as one Node sees it; no I/O and no decisions about flows."""
