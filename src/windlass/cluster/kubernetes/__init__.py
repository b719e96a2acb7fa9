"""The cluster from its API server: credentials, the connection, and each kind of objects listed and watched."""
