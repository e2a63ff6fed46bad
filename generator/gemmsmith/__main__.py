"""``python -m gemmsmith``: the command line."""

from gemmsmith.cli import main

main()
