"""Continuous batching of the GPT: prompts in, and codes with their hidden states, or text, out.

The engine knows nothing of text, voices' names, audio or Triton.
"""
