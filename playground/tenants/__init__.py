"""`make demo-tenants`: several teams share a few cards, in one scene for each promise of docs/tenants.md."""
