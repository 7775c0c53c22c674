"""Experiments: settings, the objects they mean, run folders, and many runs at once."""
