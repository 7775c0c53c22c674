"""The packed store: a dataset as flat files in one directory, mapped into memory.

Opening it reads a short manifest and maps the rest, whatever its size. It is written by
streaming one client after another, and appears under its name only when it is complete.

    manifest.json     what it is, where it comes from, every file's type, length and checksum
    x.bin, y.bin      rows of samples (or text.bin: symbols, and at.bin: a table of positions)
    train_start.bin, train_size.bin, test_start.bin, test_size.bin      per client
    users.bin, users_end.bin                     names in UTF-8, and where each one ends
"""

FORMAT = 1
MANIFEST, LARGEST_MANIFEST = "manifest.json", 2**26  # bytes
TABLES = ("train_start", "train_size", "test_start", "test_size", "users_end")
FILES = (MANIFEST, *(f"{name}.bin" for name in ("x", "y", "text", "at", "users", *TABLES)))
