"""Flower's SuperLink, as ``fedmom deploy server`` starts it: it ends with who has started it."""

import os


def main() -> None:
    """Run a SuperLink with the command line of ``flower-superlink``."""
    parent = os.getppid()
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.superlink.cli import flower_superlink

    start_parent_process_monitor(parent)
    flower_superlink()


if __name__ == "__main__":
    main()
