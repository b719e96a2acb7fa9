"""The scenario format: files become typed steps, and each step the cluster that it asks for."""
