"""Where the time of one request goes, stage by stage, of a lone request of a fixed length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from steps import TEXT, EngineSide

from chattts_triton.audio import to_pcm16
from chattts_triton.config import num_threads
from chattts_triton.manifest import load_manifest
from chattts_triton.vocoder.decoder import WaveformDecoder

NUM_REPEATS = 5
VOCODER_SHARE = 0.5  # of the cores, as `vocos_decoder` takes by default


def measure_stages(
    repository: Path, num_codes: int, call: Callable[[int], float]
) -> dict[str, float]:
    """Seconds of each stage, by its name; all but `rest` are measured in this process.

    Args:
        repository: An export.
        num_codes: Steps of the request.
        call: Makes the same request, of the seed given, through the server.
    """
    side = EngineSide(repository, num_codes)
    inputs = {"TEXT": np.asarray([[TEXT.encode()]], dtype=np.object_)}
    manifest = load_manifest(repository)
    decoder = WaveformDecoder(
        manifest.member_directory(repository, "vocos_decoder"),
        threads=num_threads(0, share=VOCODER_SHARE),
    )
    shape = num_codes, manifest.dims.hidden_size
    hiddens = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    audio = decoder.decode(hiddens)
    seed = side.seeds[0]
    prompt = side.sequence(seed, [])
    embeds = side.runner.embed_prompt(prompt.text_ids, prompt.speaker_embedding)
    step_s = statistics.median(side.run(1)[1])
    session_s = statistics.median(side.session_times(1))
    stages = {
        "preprocess": seconds(lambda: side.preprocess.run(inputs, {})),
        "prefill": seconds(lambda: side.runner.prefill(0, embeds)),
        "session": num_codes * session_s,
        "engine": num_codes * (step_s - session_s),
        "waveform": seconds(lambda: decoder.decode(hiddens)),
        "pcm16": seconds(lambda: to_pcm16(audio, seed)),
    }
    return with_rest(stages, seconds(lambda: call(seed)))


def with_rest(stages: dict[str, float], whole_s: float) -> dict[str, float]:
    """The stages and what the whole request takes beside them; never below 0."""
    return {**stages, "rest": max(0.0, whole_s - sum(stages.values()))}


def seconds(call: Callable[[], object]) -> float:
    """Median over a few calls, behind one that warms up."""
    call()
    times = []
    for _ in range(NUM_REPEATS):
        began_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)
