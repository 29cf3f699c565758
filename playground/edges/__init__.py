"""Every edge at which untrusted input arrives, for `docs/edges.md`."""
