"""``python -m fedmom`` is the command line."""

from fedmom.cli import main

main()
