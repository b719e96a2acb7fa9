"""Runs scenarios from start to cleanup, or keeps a cluster running for inspection."""
