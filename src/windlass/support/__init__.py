"""The support bundle: what somebody far away needs to find out what is wrong with a Node, without its secrets."""
