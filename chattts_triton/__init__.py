"""ChatTTS served by Triton Inference Server: the one package behind the model repository."""

__version__ = "0.1.0"
