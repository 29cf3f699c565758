"""Every edge at which something untrusted arrives, as `docs/edges.md` shows it."""
