"""Clusters on one machine: reads scenarios, brings them up on real Open vSwitch, probes with packets and judges."""
