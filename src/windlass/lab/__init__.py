"""Clusters on one machine: reads scenarios, starts them on real Open vSwitch, sends probes and judges the results."""
