"""The paper's experiments, from the plan to the page: ``fedmom paper``."""
