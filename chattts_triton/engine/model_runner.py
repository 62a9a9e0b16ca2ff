"""Runs the GPT graph: prefill of one sequence, decode of the batch. The engine's only ORT user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from chattts_triton.engine.kv_cache import KVCache
from chattts_triton.errors import GenerationError
from chattts_triton.manifest import Manifest
from chattts_triton.ort import make_session

FILE_NAME = "gpt.onnx"
TEXT_HEAD = "text_head.onnx"
TEXT_EMBEDDINGS = "text_embeddings.npy"
CODE_EMBEDDINGS = "code_embeddings.npy"
SPEAKER_TOKEN = "[spk_emb]"

Floats = npt.NDArray[np.float32]


class ModelRunner:
    """One session over the GPT graph and the KV slots it writes to. Not thread-safe.

    The IO binding of a batch size is made once and kept: all arrays it names stay where they are,
    and a batch of B is the first B slots of each.
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
        on_gpu: bool = False,
    ) -> None:
        self.dims = manifest.dims
        self._speaker_id = manifest.special_ids[SPEAKER_TOKEN]
        # 8-bit kernels take two rows at a time and round the odd last one in another way.
        self._row_multiple = 2 if exact_batching and manifest.precision == "int8" else 1
        num_rows = self._padded(max_num_seqs)
        self.kv_cache = KVCache(self.dims, num_rows, max_model_len)
        self._text_embeddings: Floats = np.load(directory / TEXT_EMBEDDINGS, mmap_mode="r")
        self._code_embeddings: Floats = np.load(directory / CODE_EMBEDDINGS, mmap_mode="r")
        self._session = make_session(directory / FILE_NAME, threads=threads, on_gpu=on_gpu)
        # At once, though most servers never refine: a later export removes the file.
        self._text_head = make_session(directory / TEXT_HEAD, threads=threads, spinning=False)
        self._embeds = np.zeros((num_rows, 1, self.dims.hidden_size), dtype=np.float32)
        self._seqlens = np.zeros(num_rows, dtype=np.int32)
        self._total = np.zeros((), dtype=np.int32)
        width = self.dims.num_vq * self.dims.num_audio_tokens
        self._logits = np.zeros((num_rows, width), dtype=np.float32)
        self._hidden = np.zeros((num_rows, self.dims.hidden_size), dtype=np.float32)
        self._bindings: dict[int, ort.IOBinding] = {}

    def prefill(self, slot: int, embeds: Floats) -> tuple[Floats, Floats]:
        """Run a whole prompt alone and fill its slot.

        Args:
            slot: The KV slot to write, from its first position on.
            embeds: (T, hidden) float32, see `embed_prompt`.

        Returns:
            Code logits (1, num_vq, V) and hidden state (1, hidden) of the last position; new
            arrays.
        """
        num_positions = len(embeds)
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

    def decode(self, embeds: Floats, num_cached: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
        """Run one step of the sequences in the first B slots.

        Args:
            embeds: (B, hidden) float32, of the tokens drawn by the step before.
            num_cached: (B,) int32, positions that each slot holds so far.

        Returns:
            Code logits (B, num_vq, V) and hidden states (B, hidden); views that the next step
            reuses.
        """
        num_seqs = len(embeds)
        num_rows = self._padded(num_seqs)
        self._embeds[:num_seqs, 0] = embeds
        self._seqlens[:num_seqs] = num_cached
        self._seqlens[num_seqs:num_rows] = 0  # a padding row attends to nothing but itself
        self._total[...] = num_cached.max() + 1
        if num_rows not in self._bindings:
            self._bindings[num_rows] = self._decode_binding(num_rows)
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
        _bind(binding.bind_input, "inputs_embeds", self._embeds[:num_rows])
        _bind(binding.bind_input, "seqlens_k", self._seqlens[:num_rows])
        _bind(binding.bind_input, "total_sequence_length", self._total)
        _bind(binding.bind_output, "logits", self._logits[:num_rows])
        _bind(binding.bind_output, "hidden", self._hidden[:num_rows])
        self._bind_slots(binding, 0, num_rows)
        return binding

    def _bind_slots(self, binding: ort.IOBinding, start: int, stop: int) -> None:
        for name, buffer in self.kv_cache.buffers.items():
            # Past and present are the same memory: attention appends to it in place.
            _bind(binding.bind_input, f"past_key_values.{name}", buffer[start:stop])
            _bind(binding.bind_output, f"present.{name}", buffer[start:stop])

    def _run(self, binding: ort.IOBinding) -> None:
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise GenerationError(f"ONNX Runtime failed: {error}") from error


def _bind(bind: object, name: str, array: npt.NDArray[np.generic]) -> None:
    """Bind an array's own memory; whoever binds keeps the array alive."""
    assert array.flags.c_contiguous
    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)  # type: ignore[operator]
