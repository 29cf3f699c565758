"""`make demo-tenants`: what several teams on few cards get, one scene for each thing that docs/tenants.md promises."""
