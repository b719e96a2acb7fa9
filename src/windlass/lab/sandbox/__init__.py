"""One lab on this machine: its namespaces, folder and processes, and their removal."""
