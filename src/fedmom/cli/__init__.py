"""The command line: one file per group of commands, loaded when its command is used."""
