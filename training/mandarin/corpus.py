"""Mandarin lines, spoken by espeak-ng, in shards like those of the English corpus."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from multiprocessing import get_context
from os import sched_getaffinity
from pathlib import Path

import torch
from tqdm import tqdm

from chattts_triton.constants import DEFAULT_SPEED, MAX_SPEED, MIN_SPEED
from training.corpus import Line, save_shard, shard_path
from training.mandarin.domain import MandarinSource
from training.mandarin.teacher import phone_names, speak
from training.teacher import VOICES

LINES_PER_SHARD = 250


def lines(shard: int, seed: int) -> Iterator[Line]:
    """The lines of a shard, always the same and without end."""
    rng = random.Random(f"{seed}/{shard}/mandarin")
    source = MandarinSource(rng.randrange(2**31), held_out=False)
    while True:
        is_grammar = rng.random() < 0.5
        text = source.sentence() if is_grammar else source.characters(rng.choice((1, 4, 8, 12, 16)))
        is_usual = rng.random() < 0.4
        speed = DEFAULT_SPEED if is_usual else rng.randint(MIN_SPEED, MAX_SPEED)
        yield Line(text, rng.choice(VOICES), speed)


def write_shards(directory: Path, first: int, count: int, seed: int) -> None:
    """Write the shards `first` and on that are missing.

    Raises:
        EspeakError: The teacher is missing or failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    numbers = range(first, first + count)
    missing = [(directory, n, seed) for n in numbers if not shard_path(directory, n).exists()]
    if not missing:
        return
    with get_context("spawn").Pool(len(sched_getaffinity(0))) as pool:
        done = pool.imap_unordered(_write_shard, missing)
        for _ in tqdm(done, desc="mandarin corpus", unit="shard", total=len(missing)):
            pass


def _write_shard(job: tuple[Path, int, int]) -> None:
    directory, shard, seed = job
    torch.set_num_threads(1)
    spoken = [
        (line, speak(line.text, line.voice, line.speed, shard * LINES_PER_SHARD + number))
        for number, line in enumerate(islice(lines(shard, seed), LINES_PER_SHARD))
    ]
    save_shard(shard_path(directory, shard), spoken, phone_names(), keeps_audio=False)
