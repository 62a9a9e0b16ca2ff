"""From what people type to what the model reads. Knows nothing of Triton, audio or the engine."""
