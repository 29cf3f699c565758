"""`make demo-tenants`: what several teams on few cards get, one scene for each promise of docs/tenants.md."""
