"""Client of the Triton model `chattts`: text in, 24 kHz audio out, over gRPC."""

from __future__ import annotations

from chattts_client._audio import SAMPLE_RATE_HZ, Audio
from chattts_client._chunks import AudioChunk, StreamMode, join_chunks
from chattts_client._client import DEFAULT_URL, AsyncChatTTSClient, ChatTTSClient
from chattts_client._errors import (
    ChatTTSClientError,
    DeadlineExceededError,
    GenerationError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    ServerUnreachableError,
)
from chattts_client._options import OptionArguments
from chattts_client._wire import DEFAULT_TIMEOUT_S

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "DEFAULT_URL",
    "SAMPLE_RATE_HZ",
    "AsyncChatTTSClient",
    "Audio",
    "AudioChunk",
    "ChatTTSClient",
    "ChatTTSClientError",
    "DeadlineExceededError",
    "GenerationError",
    "InvalidRequestError",
    "OptionArguments",
    "OverloadedError",
    "RequestCancelledError",
    "ServerUnreachableError",
    "StreamMode",
    "join_chunks",
]
