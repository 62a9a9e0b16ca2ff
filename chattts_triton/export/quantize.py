"""Symmetric 8-bit weights in blocks along the input channels, as MatMulNBits stores them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ZERO_POINT = 128  # what MatMulNBits assumes for 8 bits when it is given no zero points
_LARGEST = 127


def quantize_blocks(
    weight: npt.NDArray[np.float32], block_size: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Round a weight to 8 bits with one scale for every `block_size` input channels.

    Args:
        weight: (in, out) float32.
        block_size: Input channels that share a scale; the last block is padded with zeros.

    Returns:
        Values (out, blocks, block_size) uint8, offset by 128, and scales (out, blocks) float32:
        weight = (value - 128) * scale.
    """
    num_in, num_out = weight.shape
    num_blocks = -(-num_in // block_size)
    padded = np.zeros((num_out, num_blocks * block_size), dtype=np.float32)
    padded[:, :num_in] = weight.T
    blocks = padded.reshape(num_out, num_blocks, block_size)
    scales = np.abs(blocks).max(axis=2) / _LARGEST
    scales[scales == 0] = 1.0  # a block of zeros stays zeros
    values = np.rint(blocks / scales[:, :, None]) + _ZERO_POINT
    return values.astype(np.uint8), scales.astype(np.float32)


def dequantize_blocks(
    values: npt.NDArray[np.uint8], scales: npt.NDArray[np.float32], num_in: int
) -> npt.NDArray[np.float32]:
    """The weight (in, out) that quantised values stand for."""
    blocks = (values.astype(np.float32) - _ZERO_POINT) * scales[:, :, None]
    return blocks.reshape(values.shape[0], -1)[:, :num_in].T
