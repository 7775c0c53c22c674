"""Whole experiments from Python: run, compare, sweep, load, report."""
