"""Methods that are more than a server optimizer, one file each."""
