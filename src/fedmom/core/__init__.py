"""What every layer uses: errors, names with options, random keys, files, progress bars."""
