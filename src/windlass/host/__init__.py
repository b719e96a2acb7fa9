"""The Node's host: its desired state (`plans`), what it must provide (`protocol`), and both implementations."""
