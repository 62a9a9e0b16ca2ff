"""Load on a server, and what its callers would have noticed of it."""
