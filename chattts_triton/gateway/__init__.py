"""The HTTP gateway: an OpenAI-compatible API in front of Triton, which it knows by gRPC alone."""
