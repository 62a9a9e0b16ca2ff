"""The whole server over a fresh export of a voice, asked for one text at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm
from voice_takes import Take

from chattts_client import Audio, ChatTTSClient, StreamMode, join_chunks
from chattts_triton.constants import CODES_PER_SECOND, SAMPLE_RATE_HZ
from chattts_triton.export.repository import export
from chattts_triton.manifest import load_manifest
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.voices.speaker import encode_speaker
from training.held_out import Sentence
from training.speakers import speaker_vector

SEED = 1
# In shares of the teacher's duration; a text that takes longer runs on, and need not be waited for.
LONGEST = 3
CALL_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Speaker:
    """A server in one precision."""

    client: ChatTTSClient
    hidden_size: int

    def say(
        self, sentence: Sentence, voice: str, mode: StreamMode | None = None, **options: Any
    ) -> Take:
        """A sentence with the usual seed and speed unless `options` say otherwise."""
        teacher_s = len(sentence.speech[voice].audio) / SAMPLE_RATE_HZ
        max_new_tokens = round(LONGEST * CODES_PER_SECOND * teacher_s)
        began_s = time.perf_counter()
        audio = self.audio(sentence.written, voice, mode, max_new_tokens=max_new_tokens, **options)
        elapsed_s = time.perf_counter() - began_s
        return Take(sentence.text, voice, audio.samples, teacher_s, audio.finish_reason, elapsed_s)

    def say_all(
        self, sentences: Sequence[Sentence], name: str, voice: str, **options: Any
    ) -> list[Take]:
        """Each sentence by itself, so that the real-time factor is that of a lone caller."""
        bar = tqdm(sentences, desc=name, file=sys.stderr)
        return [self.say(sentence, voice, **options) for sentence in bar]

    def audio(
        self, written: str, voice: str, mode: StreamMode | None = None, **options: Any
    ) -> Audio:
        """What the server makes of a text, by a stream if there is a mode."""
        vector = encode_speaker(speaker_vector(voice, self.hidden_size))
        settings: dict[str, Any] = {"seed": SEED, "lang": "en", "voice": vector} | options
        if mode is None:
            return self.client.synthesize(written, **settings)
        return join_chunks(self.client.stream(written, mode=mode, **settings))


@contextmanager
def serving(checkpoint: Path, precision: str) -> Iterator[Speaker]:
    """Export a checkpoint to a place of its own and serve it while the context lasts."""
    with TemporaryDirectory() as directory:
        repository = Path(directory) / "model_repository"
        export(checkpoint, repository, precision)
        hidden_size = load_manifest(repository).dims.hidden_size
        with (
            serve_in_background(repository) as server,
            ChatTTSClient(server.grpc, timeout_s=CALL_TIMEOUT_S) as client,
        ):
            client.synthesize("hello.", seed=SEED)  # the first call of a server is slower
            yield Speaker(client, hidden_size)
