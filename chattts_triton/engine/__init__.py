"""Continuous batching of the GPT: sequences of text ids in, codes and hidden states out.

The engine knows nothing of text, voices' names, audio or Triton.
"""
