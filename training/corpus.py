"""The corpus: seeded lines of the domain, spoken by the teacher and kept as mel spectrograms.

It is written in shards that each depend on their number only, so that any number of processes can
share the work, and a stopped one goes on with the shards that are missing.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from os import sched_getaffinity
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from chattts_triton.constants import (
    CODES_PER_SECOND,
    DEFAULT_SPEED,
    HOP_SAMPLES,
    MAX_SPEED,
    MIN_SPEED,
    N_FFT,
    N_MELS,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_CODE,
)
from chattts_triton.export.mel_spectrogram import MelSpectrogram
from training.sentences import SentenceSource
from training.teacher import VOICES, Speech, TeacherError, speak

_FLITES_PHONES = (
    "pau aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th "
    "uh uw v w y z zh"
)
PHONES = tuple(_FLITES_PHONES.split())
_BREAKS = ("[uv_break]", "[lbreak]")
MIN_MEL = 1e-5  # upstream's floor under the logarithm


@dataclass(frozen=True)
class Line:
    """What the teacher is asked to say."""

    text: str
    voice: str
    speed: int


def lines(shard: int, seed: int, *, held_out: bool = False) -> Iterator[Line]:
    """The lines of a shard, always the same and without end."""
    rng = random.Random(f"{seed}/{shard}/{held_out}")
    source = SentenceSource(rng.randrange(2**31), held_out)
    while True:
        text = _text(source, rng)
        is_usual = rng.random() < 0.4
        speed = DEFAULT_SPEED if is_usual else rng.randint(MIN_SPEED, MAX_SPEED)
        yield Line(text, rng.choice(VOICES), speed)


def _text(source: SentenceSource, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        num_words = rng.choice([4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20])
        text = source.sentence(max(3, num_words - 2), num_words)
    elif kind < 0.68:
        text = source.figures(20)
    elif kind < 0.88:
        text = source.word_string(rng.randint(1, 14))
    else:
        text = source.spelled()
    return _with_breaks(text, rng) if rng.random() < 0.15 else text


def _with_breaks(text: str, rng: random.Random) -> str:
    """The text with one or two tags of a pause between words, or behind the last."""
    words = text.split()
    for _ in range(rng.randint(1, 2)):
        words.insert(rng.randint(1, len(words)), rng.choice(_BREAKS))
    return " ".join(words)


@dataclass(frozen=True)
class CorpusSize:
    """How much the teacher says.

    Attributes:
        num_shards: Files of the corpus.
        num_audio_shards: How many of them, from the first, keep their audio as well.
        lines_per_shard: Lines of each.
    """

    num_shards: int
    num_audio_shards: int
    lines_per_shard: int


def write_corpus(directory: Path, size: CorpusSize, seed: int) -> None:
    """Write the shards that are missing.

    Raises:
        FliteError: The teacher is missing or failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    num_shards = size.num_shards
    missing = [
        (directory, shard, size, seed)
        for shard in range(num_shards)
        if not shard_path(directory, shard).exists()
    ]
    if not missing:
        return
    with get_context("spawn").Pool(len(sched_getaffinity(0))) as pool:
        done = pool.imap_unordered(_write_shard, missing)
        for _ in tqdm(done, desc="corpus", total=num_shards, initial=num_shards - len(missing)):
            pass


def shard_path(directory: Path, shard: int) -> Path:
    """Where a shard lies."""
    return directory / f"shard-{shard:04d}.npz"


def corpus_fingerprint(directory: Path, num_shards: int) -> str:
    """Of what is said in the first shards, and how long each line takes."""
    digest = hashlib.sha256()
    for shard in range(num_shards):
        with np.load(shard_path(directory, shard)) as content:
            digest.update(content["lines"].tobytes() + content["num_codes"].tobytes())
    return digest.hexdigest()


def _write_shard(job: tuple[Path, int, CorpusSize, int]) -> None:
    directory, shard, size, seed = job
    torch.set_num_threads(1)
    spoken: list[tuple[Line, Speech]] = []
    for line in lines(shard, seed):
        if len(spoken) == size.lines_per_shard:
            break
        try:
            noise_seed = shard * size.lines_per_shard + len(spoken)
            spoken.append((line, speak(line.text, line.voice, line.speed, noise_seed)))
        except TeacherError:
            continue  # flite paused where nothing asked for it; such a line teaches the wrong thing
    keeps_audio = shard < size.num_audio_shards
    save_shard(shard_path(directory, shard), spoken, PHONES, keeps_audio=keeps_audio)


def save_shard(
    path: Path, spoken: list[tuple[Line, Speech]], names: Sequence[str], *, keeps_audio: bool
) -> None:
    """Write lines and what the teacher made of them; the phones as places among the names."""
    content = {
        "lines": np.frombuffer(
            json.dumps([vars(line) for line, _ in spoken]).encode(), dtype=np.uint8
        ),
        "num_codes": np.array([len(s.audio) // SAMPLES_PER_CODE for _, s in spoken]),
        "mel": np.concatenate([log_mel(s.audio) for _, s in spoken]).astype(np.float16),
        "phones": np.concatenate([phones_at_codes(s, names) for _, s in spoken]),
        "units": np.concatenate([units_at_codes(s) for _, s in spoken]),
    }
    if keeps_audio:
        audio = np.concatenate([s.audio for _, s in spoken])
        content["audio"] = (audio * 32767).round().astype(np.int16)
    with path.with_suffix(".new").open("wb") as file:
        np.savez(file, **content)
    path.with_suffix(".new").replace(path)


@cache
def mel_spectrogram() -> MelSpectrogram:
    """Upstream's front end of the DVAE encoder and of Vocos."""
    return MelSpectrogram(SAMPLE_RATE_HZ, N_FFT, HOP_SAMPLES, N_MELS)


def log_mel(audio: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """(S,) samples at 24 kHz, S a multiple of 512, to (S / 256, 100)."""
    mel = mel_spectrogram()(torch.from_numpy(audio)[None])[0]
    frames: npt.NDArray[np.float32] = mel.clamp(min=MIN_MEL).log().T.numpy()
    return frames[: len(audio) // HOP_SAMPLES]


def phones_at_codes(speech: Speech, names: Sequence[str] = PHONES) -> npt.NDArray[np.int16]:
    """The phone in the middle of each code, as its place among the names: (T,)."""
    numbers = np.array([names.index(phone) for phone, _ in speech.phones], dtype=np.int16)
    return numbers[_phone_places(speech)]


def units_at_codes(speech: Speech) -> npt.NDArray[np.int16]:
    """The unit of the text in the middle of each code, as `Speech.units` counts them: (T,)."""
    return np.array(speech.units, dtype=np.int16)[_phone_places(speech)]


def _phone_places(speech: Speech) -> npt.NDArray[np.intp]:
    ends_s = np.array([end_s for _, end_s in speech.phones])
    middles_s = (np.arange(len(speech.audio) // SAMPLES_PER_CODE) + 0.5) / CODES_PER_SECOND
    return np.searchsorted(ends_s, middles_s).clip(max=len(ends_s) - 1)
