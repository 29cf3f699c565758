"""Actions on a running playground: send it a request, break and repair it, and end it."""
