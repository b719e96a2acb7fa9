"""The support bundle: the state of a Node in one file, without secrets, for diagnosis elsewhere."""
