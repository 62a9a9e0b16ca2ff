"""Trains the demonstration voice from scratch: corpus, Vocos, DVAE, GPT and mel decoder."""
