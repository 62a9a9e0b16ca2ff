"""How far streamed audio is from the audio of the whole segment decoded at once, full weights.

The hidden states are those of sequences that the engine generates; they are cut into chunks by the
default schedule. With a look-ahead of 52 steps the chunks are those of the mode quality, with less
they are those of low_latency, which have a cross-fade. Random weights make noise, not speech: how
fast the influence of later steps fades is theirs. Measure again with the weights that you serve.
Usage: python benchmarks/stream_quality.py [--steps N] [--checkpoint DIR]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine
from tqdm import tqdm

from chattts_triton.config import MAX_MODEL_LEN, EngineConfig, StreamConfig, num_threads
from chattts_triton.constants import (
    CODES_PER_SECOND,
    CONTEXT_CODES,
    SAMPLES_PER_CODE,
    SHORT_CONTEXT_CODES,
)
from chattts_triton.engine.engine import Engine, make_samplers
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.sampler import use_one_torch_thread
from chattts_triton.engine.sequence import Sequence
from chattts_triton.export.repository import export, is_export_of
from chattts_triton.export.standin import write_standin
from chattts_triton.manifest import load_manifest
from chattts_triton.sampling_params import SamplingParams
from chattts_triton.serving.preprocess import PreprocessModel
from chattts_triton.vocoder.chunks import ChunkSchedule
from chattts_triton.vocoder.decoder import WaveformDecoder
from chattts_triton.vocoder.segment_stream import SegmentStream, longest_cross_fade

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "checkpoints" / "standin-full"
RESULT = ROOT / "benchmarks" / "results" / "stream_quality.json"
TEXT = "四川美食确实以辣闻名，但也有不辣的选择。"
SEEDS = range(8)
LOOK_AHEADS = (1, 2, 4, 8, 10, 12, 16, 24, 32, CONTEXT_CODES)
CROSS_FADES = (0, 32, 128, 256, 512, 1024, 2048)
LARGEST_QUALITY_DIFFERENCE = 1e-5

Floats = Any


@dataclass
class Streamed:
    """The joined chunks of one sequence and its one-shot audio; where all chunks but one begin."""

    audio: Floats
    one_shot: Floats
    edges: list[int]


def generate(repository: Path, max_new_codes: int) -> list[Floats]:
    """Hidden states (T, hidden) of one sequence for each seed, as long as each happens to be."""
    use_one_torch_thread()
    manifest = load_manifest(repository)
    runner = ModelRunner(
        manifest,
        manifest.member_directory(repository, "gpt"),
        max_num_seqs=len(SEEDS),
        max_model_len=MAX_MODEL_LEN,
        threads=num_threads(0),
        exact_batching=True,
    )
    preprocess = PreprocessModel(
        manifest.member_directory(repository, "preprocess"), manifest.special_ids
    )
    engine = Engine(
        runner, make_samplers(manifest, len(SEEDS)), EngineConfig(max_num_seqs=len(SEEDS))
    )
    finished: list[Sequence] = []
    for seed in SEEDS:
        prompt = preprocess.run(
            {
                "TEXT": np.asarray([[TEXT.encode()]], dtype=np.object_),
                "SEED": np.asarray([[seed]], dtype=np.int64),
            },
            {},
        )
        engine.add_request(
            [
                Sequence(
                    f"seed {seed}",
                    prompt["TEXT_IDS"][0],
                    prompt["SPEAKER_EMBEDDING"][0],
                    SamplingParams(seed, max_new_codes),
                    finished.append,
                )
            ]
        )
    while len(finished) < len(SEEDS):
        engine.step()
    return [sequence.hiddens for sequence in finished if sequence.error is None]


def stream(
    hiddens: Floats,
    one_shot: Floats,
    decode: Callable[[Floats], Floats],
    look_ahead: int,
    cross_fade: int,
) -> Streamed:
    config = StreamConfig()
    segment = SegmentStream(
        ChunkSchedule(
            config.first_chunk_codes, config.chunk_growth_percent, config.max_chunk_codes
        ),
        context_codes=CONTEXT_CODES if look_ahead == CONTEXT_CODES else SHORT_CONTEXT_CODES,
        look_ahead_codes=look_ahead,
        cross_fade_samples=cross_fade,
    )
    segment.append(hiddens)
    segment.end(len(hiddens))
    chunks = []
    while not segment.is_finished:
        chunks.append(segment.cut(decode(segment.window())))
    edges = np.cumsum([len(chunk) for chunk in chunks])[:-1].tolist()
    return Streamed(np.concatenate(chunks), one_shot, edges)


def describe(streams: list[Streamed]) -> dict[str, Any]:
    """Over all sequences; signal to noise takes the one-shot audio for the signal."""
    differences = [each.audio - each.one_shot for each in streams]
    signal = np.concatenate([each.one_shot for each in streams])
    at_edges = [
        difference[edge - SAMPLES_PER_CODE : edge + SAMPLES_PER_CODE]
        for each, difference in zip(streams, differences, strict=True)
        for edge in each.edges
    ]
    return {
        "edges": len(at_edges),
        "max_abs": float(np.abs(np.concatenate(differences)).max()),
        "snr_db": decibels(signal, np.concatenate(differences)),
        "snr_at_edges_db": decibels(signal, np.concatenate(at_edges)),
        "edge_step": max(edge_step(each) for each in streams if each.edges),
    }


def decibels(signal: Floats, noise: Floats) -> float:
    powers = [float(np.mean(np.square(each, dtype=np.float64))) for each in (signal, noise)]
    return 10 * math.log10(powers[0] / powers[1])


def edge_step(streamed: Streamed) -> float:
    """The largest step from a sample to the next at any edge, over the largest one around it."""
    steps, wanted = (np.abs(np.diff(each)) for each in (streamed.audio, streamed.one_shot))
    return max(
        float(steps[edge - 2 : edge + 2].max() / wanted[max(edge - 512, 0) : edge + 512].max())
        for edge in streamed.edges
    )


def measure(checkpoint: Path, max_new_codes: int) -> dict[str, Any]:
    repository = ROOT / "build" / "bench-fp32"
    if not is_export_of(repository, checkpoint, "fp32"):
        export(checkpoint, repository, "fp32")
    decoder = WaveformDecoder(
        load_manifest(repository).member_directory(repository, "vocos_decoder"),
        threads=num_threads(0),
    )
    sequences = generate(repository, max_new_codes)
    one_shots = [decoder.decode(hiddens) for hiddens in sequences]

    def streamed(look_ahead: int, fade: int) -> dict[str, Any]:
        pairs = zip(sequences, one_shots, strict=True)
        return describe([stream(*pair, decoder.decode, look_ahead, fade) for pair in pairs])

    config = StreamConfig()
    look_aheads, fades = {}, {}
    for look_ahead in tqdm(LOOK_AHEADS, desc="look-aheads", file=sys.stderr):
        fade = min(config.cross_fade_samples, longest_cross_fade(look_ahead))
        fade = 0 if look_ahead == CONTEXT_CODES else fade
        look_aheads[str(look_ahead)] = {"cross_fade_samples": fade, **streamed(look_ahead, fade)}
    for fade in tqdm(CROSS_FADES, desc="cross-fades", file=sys.stderr):
        fades[str(fade)] = streamed(config.look_ahead_codes, fade)
    return {
        "sequences": len(sequences),
        "audio_s": sum(map(len, sequences)) / CODES_PER_SECOND,
        "default_look_ahead_codes": config.look_ahead_codes,
        "default_cross_fade_samples": config.cross_fade_samples,
        "look_aheads": look_aheads,
        "cross_fades": fades,
    }


def as_tables(result: dict[str, Any]) -> str:
    lines = [
        f"`{result['command']}`, {result['date']}, {result['machine']}",
        "",
        "| look-ahead steps | ms of audio | cross-fade samples | largest difference "
        "| SNR dB | SNR at edges dB | step at edges |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for look_ahead, row in result["look_aheads"].items():
        lines.append(
            f"| {look_ahead} | {int(look_ahead) * 1000 / CODES_PER_SECOND:.0f} "
            f"| {row['cross_fade_samples']} | {as_row(row)}"
        )
    lines += [
        "",
        f"| cross-fade samples, look-ahead {result['default_look_ahead_codes']} "
        "| largest difference | SNR dB | SNR at edges dB | step at edges |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {fade} | {as_row(row)}" for fade, row in result["cross_fades"].items()]
    return "\n".join(lines)


def as_row(row: dict[str, Any]) -> str:
    return (
        f"{row['max_abs']:.1e} | {row['snr_db']:.1f} | {row['snr_at_edges_db']:.1f} "
        f"| {row['edge_step']:.2f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="the most steps of a sequence")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT, metavar="DIR")
    args = parser.parse_args()
    if args.checkpoint == CHECKPOINT and not CHECKPOINT.is_dir():
        write_standin("full", CHECKPOINT)
    command = f"python benchmarks/stream_quality.py --steps {args.steps}"
    if args.checkpoint != CHECKPOINT:
        command += f" --checkpoint {args.checkpoint}"
    result = {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        **measure(args.checkpoint, args.steps),
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{as_tables(result)}\n\nwritten to {RESULT.relative_to(ROOT)}")
    if result["look_aheads"][str(CONTEXT_CODES)]["max_abs"] > LARGEST_QUALITY_DIFFERENCE:
        print("the chunks of quality are not the one-shot audio", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
