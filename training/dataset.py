"""The corpus as the GPT learns it: codes, mel spectrograms and phones, mapped into memory."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from chattts_triton.constants import FRAMES_PER_CODE, N_MELS, NUM_VQ
from training.corpus import Line, shard_path
from training.modules import Dvae

COEF = "coef.npy"
_FINGERPRINT = "fingerprint.txt"  # written last


def fingerprint(directory: Path) -> str:
    """Of the corpus and the DVAE that a dataset was made with; empty where it is not complete."""
    path = directory / _FINGERPRINT
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write_dataset(corpus: Path, num_shards: int, dvae: Dvae, directory: Path) -> None:
    """Encode every line of the corpus, unless that was done with this corpus and DVAE."""
    wanted = _fingerprint(num_shards, dvae)
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
    for shard in tqdm(shards, desc="codes", unit="shard"):
        shard_mel, ends = shard["mel"], np.cumsum(shard["num_codes"])
        mel[FRAMES_PER_CODE * written :][: len(shard_mel)] = shard_mel
        for end, length in zip(ends, shard["num_codes"], strict=True):
            frames = shard_mel[FRAMES_PER_CODE * (end - length) : FRAMES_PER_CODE * end]
            codes[written + end - length : written + end] = _codes(dvae, frames)
        written += int(ends[-1])
    mel.flush()
    codes.flush()
    np.save(directory / "phones.npy", np.concatenate([shard["phones"] for shard in shards]))
    np.save(directory / "num_codes.npy", num_codes)
    lines = [line for shard in shards for line in json.loads(bytes(shard["lines"]))]
    (directory / "lines.json").write_text(json.dumps(lines), encoding="utf-8")
    np.save(directory / COEF, dvae.coef.numpy())
    (directory / _FINGERPRINT).write_text(wanted, encoding="utf-8")


def _fingerprint(num_shards: int, dvae: Dvae) -> str:
    digest = hashlib.sha256(str(num_shards).encode())
    for tensor in dvae.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def _codes(dvae: Dvae, frames: npt.NDArray[np.float16]) -> npt.NDArray[np.int16]:
    mel = torch.from_numpy(frames.astype(np.float32)).T[None]
    _, codes = dvae.quantize(dvae.features(mel))
    return codes[0].numpy().astype(np.int16)


@dataclass(frozen=True)
class Dataset:
    """All lines; line `i` holds codes `starts[i]` to `starts[i] + num_codes[i]`."""

    lines: list[Line]
    num_codes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int16]
    phones: npt.NDArray[np.int8]
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
            mel=np.load(directory / "mel.npy", mmap_mode="r"),
        )
