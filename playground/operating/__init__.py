"""What is done to a playground that runs: it is asked for something, broken and mended, and ended."""
