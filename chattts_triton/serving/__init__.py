"""The edge to Triton: what the three Python models of the ensemble do with a request."""
