"""``python -m fedmom`` is the command line."""

from fedmom.cli.start import main

main()
