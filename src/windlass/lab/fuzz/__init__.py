"""Random clusters with an oracle of their own: `windlass lab fuzz`."""
