"""The host beside the switch: what it should hold (`plans`), what it must be able to do (`protocol`), and Linux."""
