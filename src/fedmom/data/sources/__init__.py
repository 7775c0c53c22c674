"""The datasets by name, and the formats of files that can be read."""
