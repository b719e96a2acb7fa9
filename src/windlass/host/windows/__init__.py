"""The host of a Windows Node: IP Helper and the Host Compute Network, by ctypes."""
