"""Byte streams between the processes of one machine: Unix sockets, or named pipes on Windows."""
