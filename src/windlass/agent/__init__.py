"""The process that runs on a Node: it wires the sources, the program, the switch, the host and the CNI server."""
