"""`python -m windlass`: the command, where there is no script for it."""

from windlass.cli import main

main(prog_name="windlass")
