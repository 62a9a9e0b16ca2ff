"""Runs the GPT graph: prefill of one sequence, decode of the batch. The engine's only ORT user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from chattts_triton.config import SHORTEST_PREFILL
from chattts_triton.engine.kv_cache import DeviceKVCache, HostKVCache, KVCache, bind
from chattts_triton.engine.placement import ON_CPU, Placement, kv_dtype, row_multiple
from chattts_triton.errors import GenerationError
from chattts_triton.manifest import Manifest
from chattts_triton.ort import Device, make_session

FILE_NAME = "gpt.onnx"
TEXT_HEAD = "text_head.onnx"
TEXT_EMBEDDINGS = "text_embeddings.npy"
CODE_EMBEDDINGS = "code_embeddings.npy"
SPEAKER_TOKEN = "[spk_emb]"
_TRIED_POSITIONS = 2 * SHORTEST_PREFILL + 1
_ODD_PIECE = SHORTEST_PREFILL + 1  # one that ends with an odd row, which in the whole is in a pair

Floats = npt.NDArray[np.float32]


class ModelRunner:
    """One session over the GPT graph and the KV slots it writes to. Not thread-safe.

    The IO binding of a batch size is made once and kept: all arrays it names stay where they are,
    and a batch of B is the first B slots of each. What is bound on the host for a graph on a device
    is copied when it is bound, so there the small inputs are bound anew at each step.

    Args:
        manifest: Of the export.
        directory: Of its files of `gpt`.
        max_num_seqs: KV slots.
        max_model_len: Positions of a slot.
        threads: Of the session.
        exact_batching: Pad batches so that a row's bits do not depend on its neighbours.
        placement: Where graph and slots are, see `place_gpt`.
        kv_cache: The slots; by default they are made where `placement` says.

    Raises:
        ModelLoadError: A file cannot be read, or the device cannot be used or is too small.
    """

    def __init__(
        self,
        manifest: Manifest,
        directory: Path,
        *,
        max_num_seqs: int,
        max_model_len: int,
        threads: int,
        exact_batching: bool,
        placement: Placement = ON_CPU,
        kv_cache: KVCache | None = None,
    ) -> None:
        self.dims = manifest.dims
        self._speaker_id = manifest.special_ids[SPEAKER_TOKEN]
        self._row_multiple = row_multiple(
            placement.device, exact_batching=exact_batching, max_num_seqs=max_num_seqs
        )
        num_rows = self._padded(max_num_seqs)
        weights = directory / f"{FILE_NAME}.data"
        self._session = make_session(
            directory / FILE_NAME,
            threads=threads,
            device=placement.device,
            device_id=placement.device_id,
            arena_limit_bytes=placement.arena_limit(manifest, weights, num_rows, max_model_len),
        )
        dtype = kv_dtype(manifest.precision)
        self.kv_cache: KVCache
        if kv_cache is not None:
            self.kv_cache = kv_cache
        elif placement.device is Device.CPU:
            self.kv_cache = HostKVCache(self.dims, num_rows, max_model_len, dtype)
        else:
            self.kv_cache = DeviceKVCache(
                self.dims, num_rows, max_model_len, dtype, directory, placement
            )
        self._text_embeddings: Floats = np.load(directory / TEXT_EMBEDDINGS, mmap_mode="r")
        self._code_embeddings: Floats = np.load(directory / CODE_EMBEDDINGS, mmap_mode="r")
        # At once, though most servers never refine: a later export removes the file.
        self._text_head = make_session(
            directory / TEXT_HEAD, threads=threads, spinning=False, prepacking=False
        )
        self._embeds = np.zeros((num_rows, 1, self.dims.hidden_size), dtype=np.float32)
        self._seqlens = np.zeros(num_rows, dtype=np.int32)
        self._total = np.zeros((), dtype=np.int32)
        width = self.dims.num_vq * self.dims.num_audio_tokens
        self._logits = np.zeros((num_rows, width), dtype=np.float32)
        self._hidden = np.zeros((num_rows, self.dims.hidden_size), dtype=np.float32)
        self._bindings: dict[int, ort.IOBinding] = {}
        self.may_cut_prompts = not exact_batching
        if exact_batching and placement.device is Device.CPU:
            self._see_what_keeps_bits()

    def _see_what_keeps_bits(self) -> None:
        """Try whether an odd row and a piece of a prompt get the bits that they get in company.

        Which kernels there are, and how they round, depends on the processor and on the graph.
        """
        embeds = np.random.default_rng(0).standard_normal(
            (_TRIED_POSITIONS, self.dims.hidden_size), dtype=np.float32
        )
        whole, end = self.prefill(0, embeds), _ODD_PIECE
        self.prefill(1, embeds[:end])
        self.may_cut_prompts = _are_same(whole, self.prefill(1, embeds[end:], end))
        num_cached = np.full(2, len(embeds), dtype=np.int32)
        logits, hidden = self.decode(embeds[:2], num_cached)
        in_company = logits[:1].copy(), hidden[:1].copy()
        self._row_multiple = 1
        if not _are_same(in_company, self.decode(embeds[:1], num_cached[:1])):
            self._row_multiple = 2

    def prefill(self, slot: int, embeds: Floats, start: int = 0) -> tuple[Floats, Floats]:
        """Run a prompt, or a piece of one, alone, and fill its slot.

        Args:
            slot: The KV slot to write.
            embeds: (T, hidden) float32, see `embed_prompt`.
            start: Positions of the prompt that the slot holds already.

        Returns:
            Code logits (1, num_vq, V) and hidden state (1, hidden) of the last position; new
            arrays.
        """
        num_positions = start + len(embeds)
        embeds = embeds[None]
        last = np.asarray([num_positions - 1], dtype=np.int32)
        total = np.asarray(num_positions, dtype=np.int32)
        binding = self._session.io_binding()
        _bind(binding.bind_input, "inputs_embeds", embeds)
        _bind(binding.bind_input, "seqlens_k", last)
        _bind(binding.bind_input, "total_sequence_length", total)
        logits, hidden = np.empty_like(self._logits[:1]), np.empty_like(self._hidden[:1])
        _bind(binding.bind_output, "logits", logits)
        _bind(binding.bind_output, "hidden", hidden)
        self._bind_slots(binding, slot, slot + 1)
        self._run(binding)
        return logits.reshape(1, self.dims.num_vq, -1), hidden

    def decode(
        self, embeds: Floats, num_cached: npt.NDArray[np.int32], num_cached_behind: int = 0
    ) -> tuple[Floats, Floats]:
        """Run one step of the sequences in the first B slots.

        Args:
            embeds: (B, hidden) float32, of the tokens drawn by the step before.
            num_cached: (B,) int32, positions that each slot holds so far.
            num_cached_behind: What the slot behind these holds, which a padding row may not touch.

        Returns:
            Code logits (B, num_vq, V) and hidden states (B, hidden); views that the next step
            reuses.
        """
        num_seqs = len(embeds)
        num_rows = self._padded(num_seqs)
        self._embeds[:num_seqs, 0] = embeds
        self._seqlens[:num_seqs] = num_cached
        # A padding row writes one position, which whoever owns the slot will write over.
        self._seqlens[num_seqs:num_rows] = num_cached_behind
        self._total[...] = self._seqlens[:num_rows].max() + 1
        if num_rows not in self._bindings:
            self._bindings[num_rows] = self._decode_binding(num_rows)
        elif not self.kv_cache.is_on_host:
            self._bind_step(self._bindings[num_rows], num_rows)
        self._run(self._bindings[num_rows])
        logits = self._logits[:num_seqs].reshape(num_seqs, self.dims.num_vq, -1)
        return logits, self._hidden[:num_seqs]

    def text_logits(self, hiddens: Floats) -> Floats:
        """(B, hidden) to (B, 1, num_text_tokens): what refinement draws from; a new array."""
        # Row by row, so that a row's bits do not depend on how many there are.
        rows = [self._text_head.run(["logits"], {"hidden": row[None]})[0] for row in hiddens]
        return np.stack(rows)

    def embed_prompt(
        self,
        text_ids: npt.NDArray[np.int32],
        speaker_embedding: Floats,
        prompt_codes: npt.NDArray[np.int32] | None = None,
    ) -> Floats:
        """(T + P, hidden): text with the speaker's vector in its slot, then a sample's codes."""
        embeds = self.embed_text(text_ids)
        embeds[text_ids == self._speaker_id] = speaker_embedding
        if prompt_codes is None:
            return embeds
        return np.concatenate([embeds, self.embed_codes(prompt_codes)])

    def embed_text(self, text_ids: npt.NDArray[np.int32 | np.int64]) -> Floats:
        """(B, hidden) float32 of B text ids."""
        embeds: Floats = self._text_embeddings[text_ids]
        return embeds

    def embed_codes(self, codes: npt.NDArray[np.int32 | np.int64]) -> Floats:
        """(B, hidden) float32: the sum of each codebook's embedding."""
        # Added one after the other, as upstream's sum over the last axis does.
        total: Floats = self._code_embeddings[0][codes[:, 0]]
        for i in range(1, self.dims.num_vq):
            total += self._code_embeddings[i][codes[:, i]]
        return total

    def _padded(self, num_seqs: int) -> int:
        return -(-num_seqs // self._row_multiple) * self._row_multiple

    def _decode_binding(self, num_rows: int) -> ort.IOBinding:
        binding = self._session.io_binding()
        self._bind_step(binding, num_rows)
        _bind(binding.bind_output, "logits", self._logits[:num_rows])
        _bind(binding.bind_output, "hidden", self._hidden[:num_rows])
        self._bind_slots(binding, 0, num_rows)
        return binding

    def _bind_step(self, binding: ort.IOBinding, num_rows: int) -> None:
        _bind(binding.bind_input, "inputs_embeds", self._embeds[:num_rows])
        _bind(binding.bind_input, "seqlens_k", self._seqlens[:num_rows])
        _bind(binding.bind_input, "total_sequence_length", self._total)

    def _bind_slots(self, binding: ort.IOBinding, start: int, stop: int) -> None:
        for name, view in self.kv_cache.views(start, stop):
            # Past and present are the same memory: attention appends to it in place.
            bind(binding.bind_input, f"past_key_values.{name}", view)
            bind(binding.bind_output, f"present.{name}", view)

    def _run(self, binding: ort.IOBinding) -> None:
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise GenerationError(f"ONNX Runtime failed: {error}") from error


def _are_same(outputs: tuple[Floats, Floats], others: tuple[Floats, Floats]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(outputs, others, strict=True))


def _bind(bind: object, name: str, array: npt.NDArray[np.generic]) -> None:
    """Bind an array's own memory; whoever binds keeps the array alive."""
    assert array.flags.c_contiguous
    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)  # type: ignore[operator]
