"""Who may speak, how much, and what: the admission that stands before the gateway."""
