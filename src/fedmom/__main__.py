"""``python -m fedmom`` is the command line."""

from fedmom.cli.main import main

main()
