"""How far a precision is from fp32 on the same codes: what it would draw, and how that sounds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from chattts_triton.config import MAX_MODEL_LEN, num_threads
from chattts_triton.constants import HOP_SAMPLES, MAX_NEW_CODES, N_FFT, N_MELS, SAMPLE_RATE_HZ
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.engine.placement import Placement, place_gpt
from chattts_triton.errors import InvalidRequestError
from chattts_triton.export.mel_spectrogram import MelSpectrogram
from chattts_triton.export.repository import export
from chattts_triton.export.teacher_forcing import (
    TEXTS,
    Passes,
    Prompt,
    draw_codes,
    force,
    read_prompts,
)
from chattts_triton.manifest import PRECISIONS, Manifest, load_manifest
from chattts_triton.ort import choose_device
from chattts_triton.vocoder.decoder import WaveformDecoder

REFERENCE = "fp32"
COMPARED = tuple(precision for precision in PRECISIONS if precision != REFERENCE)
MAX_TEXTS = len(TEXTS)
# Within which a precision may be the default, for every codebook; docs/performance.md says why.
SMALLEST_AGREEMENT = 0.9
LARGEST_KL = 1e-2
# Of a magnitude in a mel band: 88 dB below a tone of full scale, so that silence is silence.
_QUIETEST = 1e-2

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Comparison:
    """A precision against fp32, over all steps of all texts.

    Attributes:
        precision: The one that is compared.
        device: Where its GPT ran.
        gpt_bytes: Size of its GPT graph with the weights.
        num_steps: Steps that were compared.
        agreement: By codebook, the share of steps at which the most likely code is the same.
        kl: By codebook, the mean divergence in nats of its distribution from that of fp32, before
            temperature and any other option.
        largest_hidden_difference: Between two values of hidden states.
        log_mel_db: Mean distance of the mel spectra of the two waveforms.
    """

    precision: str
    device: str
    gpt_bytes: int
    num_steps: int
    agreement: list[float]
    kl: list[float]
    largest_hidden_difference: float
    log_mel_db: float

    @property
    def faults(self) -> list[str]:
        """In what it is outside the bound of a default precision."""
        found = []
        if min(self.agreement) < SMALLEST_AGREEMENT:
            found.append(f"same code: {min(self.agreement):.3f}, wanted {SMALLEST_AGREEMENT}")
        if max(self.kl) > LARGEST_KL:
            found.append(f"KL: {max(self.kl):.1e}, wanted at most {LARGEST_KL:.0e}")
        return found

    def to_json(self) -> dict[str, Any]:
        """As an object of a JSON file."""
        return asdict(self)


def compare_precisions(
    checkpoint: Path, precisions: Sequence[str], *, num_texts: int, max_steps: int
) -> list[Comparison]:
    """Export a checkpoint in fp32 and in each precision, and run the same codes through all.

    Args:
        checkpoint: Holds asset/... .
        precisions: Of COMPARED.
        num_texts: How many texts fp32 speaks, at most; 1 to MAX_TEXTS.
        max_steps: Of each text, 1 to 2048.

    Raises:
        InvalidRequestError: An argument is out of range.
        ModelLoadError: The checkpoint is incomplete or damaged.
    """
    _check(precisions, num_texts, max_steps)
    with TemporaryDirectory() as directory:
        reference = _Side.of(checkpoint, REFERENCE, Path(directory))
        prompts = read_prompts(reference.manifest, reference.repository, num_texts)
        runner = reference.runner(prompts, max_steps)
        codes = [draw_codes(runner, prompt, max_steps) for prompt in _bar(prompts, "codes")]
        wanted = _force_all(runner, prompts, codes, REFERENCE)
        decoder = reference.decoder()
        audios = [decoder.decode(passes.hiddens) for passes in wanted]
        del runner
        comparisons = []
        for precision in precisions:
            side = _Side.of(checkpoint, precision, Path(directory))
            got = _force_all(side.runner(prompts, max_steps), prompts, codes, precision)
            own = side.decoder()
            distances = [
                log_mel_distance_db(own.decode(passes.hiddens), audio)
                for passes, audio in zip(got, audios, strict=True)
            ]
            comparisons.append(side.comparison(got, wanted, distances))
        return comparisons


def agreement(got: Floats, wanted: Floats) -> list[float]:
    """By head, the share of rows with the same most likely token; both (T, heads, V)."""
    same = got.argmax(axis=-1) == wanted.argmax(axis=-1)
    return [float(share) for share in same.mean(axis=0)]


def kl_divergence(got: Floats, wanted: Floats) -> list[float]:
    """By head, the mean over T of KL(wanted || got) in nats; logits (T, heads, V)."""
    log_got, log_wanted = _log_softmax(got), _log_softmax(wanted)
    divergence = (np.exp(log_wanted) * (log_wanted - log_got)).sum(axis=-1)
    return [float(mean) for mean in divergence.mean(axis=0)]


def log_mel_distance_db(got: Floats, wanted: Floats) -> float:
    """Mean absolute difference of the log-mel spectra of two signals of equal length, in dB."""
    return float((_log_mel_db(got) - _log_mel_db(wanted)).abs().mean())


def as_table(comparisons: Sequence[Comparison]) -> str:
    """The comparisons as a Markdown table, codebooks apart by slashes."""
    lines = [
        "| precision | GPT MB | device | steps | same code % | KL nats | largest hidden difference "
        "| log-mel dB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in comparisons:
        shares = " / ".join(f"{100 * share:.1f}" for share in each.agreement)
        divergences = " / ".join(f"{value:.1e}" for value in each.kl)
        lines.append(
            f"| {each.precision} | {each.gpt_bytes / 1e6:.1f} | {each.device} | {each.num_steps} "
            f"| {shares} | {divergences} | {each.largest_hidden_difference:.1e} "
            f"| {each.log_mel_db:.3f} |"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class _Side:
    """An export of the checkpoint, made for the comparison."""

    manifest: Manifest
    repository: Path
    placement: Placement

    @classmethod
    def of(cls, checkpoint: Path, precision: str, directory: Path) -> _Side:
        repository = directory / precision
        export(checkpoint, repository, precision)
        wanted = Placement(choose_device(wants_cuda=True))
        return cls(load_manifest(repository), repository, place_gpt(precision, wanted))

    def runner(self, prompts: Sequence[Prompt], max_steps: int) -> ModelRunner:
        longest = max(len(prompt.text_ids) for prompt in prompts)
        max_model_len = min(MAX_MODEL_LEN, self.manifest.dims.max_position_embeddings)
        if longest + max_steps > max_model_len:
            raise InvalidRequestError.of(
                "steps", max_steps, f"at most {max_model_len - longest} with this checkpoint"
            )
        return ModelRunner(
            self.manifest,
            self.manifest.member_directory(self.repository, "gpt"),
            max_num_seqs=1,
            max_model_len=max_model_len,
            threads=num_threads(0),
            exact_batching=True,
            placement=self.placement,
        )

    def decoder(self) -> WaveformDecoder:
        directory = self.manifest.member_directory(self.repository, "vocos_decoder")
        return WaveformDecoder(directory, threads=num_threads(0))

    def comparison(
        self, got: Sequence[Passes], wanted: Sequence[Passes], distances_db: Sequence[float]
    ) -> Comparison:
        logits, wanted_logits = (np.concatenate([p.logits for p in side]) for side in (got, wanted))
        hiddens, wanted_hiddens = (
            np.concatenate([p.hiddens for p in side]) for side in (got, wanted)
        )
        steps = [len(passes.hiddens) for passes in got]
        return Comparison(
            self.manifest.precision,
            self.placement.device.value,
            self._gpt_bytes(),
            len(logits),
            agreement(logits, wanted_logits),
            kl_divergence(logits, wanted_logits),
            float(np.abs(hiddens - wanted_hiddens).max()),
            float(np.average(distances_db, weights=steps)),
        )

    def _gpt_bytes(self) -> int:
        files = self.manifest.files.items()
        return sum(
            facts.size_bytes
            for name, facts in files
            if Path(name).name in ("gpt.onnx", "gpt.onnx.data")
        )


def _check(precisions: Sequence[str], num_texts: int, max_steps: int) -> None:
    for precision in precisions:
        if precision not in COMPARED:
            raise InvalidRequestError.of("precision", precision, " or ".join(COMPARED))
    if not 1 <= num_texts <= MAX_TEXTS:
        raise InvalidRequestError.of("texts", num_texts, f"1 to {MAX_TEXTS}")
    if not 1 <= max_steps <= MAX_NEW_CODES:
        raise InvalidRequestError.of("steps", max_steps, f"1 to {MAX_NEW_CODES}")


def _force_all(
    runner: ModelRunner,
    prompts: Sequence[Prompt],
    codes: Sequence[npt.NDArray[np.int64]],
    precision: str,
) -> list[Passes]:
    pairs = list(zip(prompts, codes, strict=True))
    return [force(runner, prompt, drawn) for prompt, drawn in _bar(pairs, precision)]


def _bar(items: Sequence[Any], name: str) -> Any:
    return tqdm(items, desc=name, unit="text", file=sys.stderr)


def _log_softmax(logits: Floats) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _log_mel_db(audio: Floats) -> torch.Tensor:
    mel = MelSpectrogram(SAMPLE_RATE_HZ, N_FFT, HOP_SAMPLES, N_MELS)(torch.from_numpy(audio))
    return 20.0 * torch.log10(mel.clamp(min=_QUIETEST))
