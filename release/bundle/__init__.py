"""One archive for installations that reach no registry and no index."""
