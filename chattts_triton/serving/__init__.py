"""The edge to Triton: what the three Python models do, and the server that runs them."""
