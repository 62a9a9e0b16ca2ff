"""The `vocos_decoder` member: hidden states to float audio and 16-bit PCM."""

from __future__ import annotations

import numpy as np

from chattts_triton.audio import to_pcm16
from chattts_triton.config import VocoderConfig, num_threads, read_config
from chattts_triton.errors import InvalidRequestError
from chattts_triton.sampling_params import check_range
from chattts_triton.serving.edge import ModelArgs, Tensors, check_lengths, column, pad_rows
from chattts_triton.vocoder.decoder import WaveformDecoder


class VocosDecoderModel:
    """Decodes each row of a request by itself."""

    def __init__(self, args: ModelArgs) -> None:
        manifest, directory = args.load_manifest()
        threads = num_threads(read_config(VocoderConfig, args.parameters).threads)
        self._decoder = WaveformDecoder(directory, threads=threads, on_gpu=args.on_gpu)
        self._hidden_size = manifest.dims.hidden_size
        # The first call pays for memory and thread start-up; no request should.
        self._decoder.decode(np.zeros((8, self._hidden_size), dtype=np.float32))

    def run(self, inputs: Tensors, _parameters: dict[str, object]) -> Tensors:
        """HIDDENS (N, T, hidden), NUM_CODES and SEED (N, 1) to AUDIO, AUDIO_LENGTH and PCM16.

        Raises:
            InvalidRequestError: A row has no steps or more than were sent, HIDDENS is of another
                width, or a seed is negative.
            GenerationError: The audio of a row is not finite.
        """
        self._check(inputs)
        num_codes = inputs["NUM_CODES"][:, 0]
        rows = zip(inputs["HIDDENS"], num_codes, strict=True)
        audios = [self._decoder.decode(hiddens[:length]) for hiddens, length in rows]
        seeds = inputs["SEED"][:, 0]
        pcm16 = [to_pcm16(audio, int(seed)) for audio, seed in zip(audios, seeds, strict=True)]
        return {
            "AUDIO": pad_rows(audios),
            "AUDIO_LENGTH": column([len(audio) for audio in audios], np.int64),
            "PCM16": pad_rows(pcm16),
        }

    def _check(self, inputs: Tensors) -> None:
        _, longest, width = inputs["HIDDENS"].shape
        if width != self._hidden_size:
            raise InvalidRequestError.of("HIDDENS", width, f"rows of {self._hidden_size} values")
        check_lengths("NUM_CODES", inputs["NUM_CODES"], longest)
        for seed in inputs["SEED"][:, 0]:
            check_range("SEED", int(seed))
