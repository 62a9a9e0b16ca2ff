"""From the GPT's hidden states to audio."""
