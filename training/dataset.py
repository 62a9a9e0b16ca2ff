"""The corpus as the GPT learns it: codes, mels, phones and units, mapped into memory."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from multiprocessing import get_context
from os import sched_getaffinity
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from chattts_triton.constants import FRAMES_PER_CODE, N_MELS, NUM_VQ
from training.corpus import Line, corpus_fingerprint, shard_path
from training.modules import Dvae

COEF = "coef.npy"
_FINGERPRINT = "fingerprint.txt"  # written last


def fingerprint(directory: Path) -> str:
    """Of the corpus and the DVAE that a dataset was made with; empty where it is not complete."""
    path = directory / _FINGERPRINT
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write_dataset(corpus: Path, num_shards: int, dvae: Dvae, directory: Path) -> None:
    """Encode every line of the corpus, unless that was done with this corpus and DVAE."""
    wanted = _fingerprint(corpus_fingerprint(corpus, num_shards), dvae)
    if fingerprint(directory) == wanted:
        return
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _FINGERPRINT).unlink(missing_ok=True)
    shards = [np.load(shard_path(corpus, shard)) for shard in range(num_shards)]
    num_codes = np.concatenate([shard["num_codes"] for shard in shards])
    total = int(num_codes.sum())
    mel = np.lib.format.open_memmap(
        directory / "mel.npy", "w+", np.float16, (FRAMES_PER_CODE * total, N_MELS)
    )
    codes = np.lib.format.open_memmap(directory / "codes.npy", "w+", np.int16, (total, NUM_VQ))
    written = 0
    jobs = [(dvae, shard_path(corpus, shard)) for shard in range(num_shards)]
    with get_context("spawn").Pool(len(sched_getaffinity(0))) as pool:
        encoded = tqdm(pool.imap(_encoded, jobs), desc="codes", unit="shard", total=num_shards)
        for shard, shard_codes in zip(shards, encoded, strict=True):
            end = written + len(shard_codes)
            mel[FRAMES_PER_CODE * written : FRAMES_PER_CODE * end] = shard["mel"]
            codes[written:end] = shard_codes
            written = end
    mel.flush()
    codes.flush()
    for name in ("phones", "units"):
        np.save(directory / f"{name}.npy", np.concatenate([shard[name] for shard in shards]))
    np.save(directory / "num_codes.npy", num_codes)
    lines = [line for shard in shards for line in json.loads(bytes(shard["lines"]))]
    (directory / "lines.json").write_text(json.dumps(lines), encoding="utf-8")
    np.save(directory / COEF, dvae.coef.numpy())
    (directory / _FINGERPRINT).write_text(wanted, encoding="utf-8")


def _fingerprint(corpus: str, dvae: Dvae) -> str:
    digest = hashlib.sha256(corpus.encode())
    for tensor in dvae.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def _encoded(job: tuple[Dvae, Path]) -> npt.NDArray[np.int16]:
    """The codes of a shard, each line by itself as upstream encodes a sample: (T, 4)."""
    dvae, path = job
    torch.set_num_threads(1)
    shard = np.load(path)
    ends = FRAMES_PER_CODE * np.cumsum(shard["num_codes"])
    codes = []
    for frames in np.split(shard["mel"], ends[:-1]):
        mel = torch.from_numpy(frames.astype(np.float32)).T[None]
        codes.append(dvae.quantize(dvae.features(mel))[1][0].numpy().astype(np.int16))
    return np.concatenate(codes)


@dataclass(frozen=True)
class Dataset:
    """All lines; line `i` holds codes `starts[i]` to `starts[i] + num_codes[i]`."""

    lines: list[Line]
    num_codes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int16]
    phones: npt.NDArray[np.int16]
    units: npt.NDArray[np.int16]
    mel: npt.NDArray[np.float16]

    @classmethod
    def open(cls, directory: Path) -> Dataset:
        """Map the files that `write_dataset` wrote."""
        num_codes = np.load(directory / "num_codes.npy")
        lines = json.loads((directory / "lines.json").read_text(encoding="utf-8"))
        return cls(
            lines=[Line(**line) for line in lines],
            num_codes=num_codes,
            starts=np.cumsum(num_codes) - num_codes,
            codes=np.load(directory / "codes.npy", mmap_mode="r"),
            phones=np.load(directory / "phones.npy"),
            units=np.load(directory / "units.npy"),
            mel=np.load(directory / "mel.npy", mmap_mode="r"),
        )
