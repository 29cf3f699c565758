"""Which evictions would make room. Pure."""
