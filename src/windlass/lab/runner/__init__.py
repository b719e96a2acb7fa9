"""Runs scenarios from start to cleanup, or keeps a cluster up to look around in."""
