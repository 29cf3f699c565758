"""One archive for installations without access to a registry or an index."""
