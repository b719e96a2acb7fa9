"""Probes as packets: clients, servers, what each observed, and the verdict."""
