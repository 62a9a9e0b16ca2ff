"""Who speaks: speaker vectors, prompts from audio samples, and the book of named voices."""
