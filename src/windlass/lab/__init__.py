"""Clusters on one machine: scenarios are read, brought up on real Open vSwitch, probed with real packets and judged."""
