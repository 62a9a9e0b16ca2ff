"""What is trained computes what ChatTTS computes from the same tensors."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from safetensors.torch import load_file

from chattts_triton.export import checkpoint as layout
from chattts_triton.export.standin import SIZES
from chattts_triton.export.upstream import load_upstream_chat
from training.modules import Dims, Dvae, Embed, Gpt, MelDecoder, Vocos, two_frames_a_step

_TINY = SIZES["tiny"]
DIMS = Dims(
    vq_dim=2 * _TINY.dvae_dim,
    **{field.name: getattr(_TINY, field.name) for field in fields(Dims) if field.name != "vq_dim"},
)


@pytest.fixture(scope="module")
def chat(tiny_checkpoint):
    return load_upstream_chat(tiny_checkpoint)


def loaded(module, checkpoint, name):
    """The module with those tensors of the file that it has."""
    tensors = load_file(checkpoint / name)
    module.load_state_dict({key: tensors[key] for key in module.state_dict()})
    return module.eval()


@torch.no_grad()
def test_gpt_gives_upstreams_hidden_states(chat, tiny_checkpoint):
    gpt = loaded(Gpt(DIMS), tiny_checkpoint, layout.GPT)
    x = torch.randn(2, 40, DIMS.hidden_size, generator=torch.Generator().manual_seed(0)) / 28

    wanted = chat.gpt.gpt(inputs_embeds=x).last_hidden_state

    torch.testing.assert_close(gpt(x), wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_embeddings_and_heads_are_upstreams(chat, tiny_checkpoint):
    embed = loaded(Embed(DIMS, 21178), tiny_checkpoint, layout.EMBED)
    codes = torch.randint(626, (2, 7, 4), generator=torch.Generator().manual_seed(0))
    hiddens = torch.randn(2, 7, DIMS.hidden_size, generator=torch.Generator().manual_seed(1))

    no_text = torch.zeros(2, 8, dtype=torch.bool)
    no_text[:, 0] = True  # upstream wants at least one text id
    ids = torch.cat([torch.zeros(2, 1, 4, dtype=torch.long), codes], dim=1)
    wanted_logits = torch.stack([head(hiddens) for head in chat.embed.head_code], dim=-2)

    torch.testing.assert_close(embed.code_embedding(codes), chat.embed(ids, no_text)[:, 1:])
    torch.testing.assert_close(embed.code_logits(hiddens), wanted_logits)
    torch.testing.assert_close(embed.head_text(hiddens), chat.embed.head_text(hiddens))


@torch.no_grad()
def test_the_mel_decoder_gives_upstreams_spectrogram(chat, tiny_checkpoint):
    decoder = loaded(MelDecoder(DIMS), tiny_checkpoint, layout.DECODER)
    hiddens = torch.randn(1, 30, DIMS.hidden_size, generator=torch.Generator().manual_seed(0))

    wanted = chat.decoder(hiddens.transpose(1, 2).clone())

    torch.testing.assert_close(decoder(hiddens), wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_the_dvae_gives_upstreams_codes_and_spectrogram(chat, tiny_checkpoint):
    dvae = loaded(Dvae(DIMS), tiny_checkpoint, layout.DVAE)
    audio = 0.1 * torch.randn(512 * 40, generator=torch.Generator().manual_seed(0))
    mel = chat.dvae.preprocessor_mel(audio[None].clone())

    quantized, codes = dvae.quantize(dvae.features(mel))

    wanted_codes = chat.dvae.sample_audio(audio.clone())
    assert torch.equal(codes[0].T, wanted_codes)
    wanted = chat.dvae(wanted_codes[None].clone())
    torch.testing.assert_close(dvae.decode(quantized), wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_vocos_gives_upstreams_waveform(chat, tiny_checkpoint):
    vocos = loaded(Vocos(DIMS), tiny_checkpoint, layout.VOCOS)
    mel = torch.randn(1, 100, 50, generator=torch.Generator().manual_seed(0)) - 3

    torch.testing.assert_close(vocos(mel), chat.vocos.decode(mel.clone()), atol=1e-5, rtol=1e-4)


def test_a_step_becomes_two_frames_side_by_side():
    steps = torch.arange(12.0).reshape(1, 3, 4)

    frames = two_frames_a_step(steps)

    assert frames.tolist() == [[[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]]
