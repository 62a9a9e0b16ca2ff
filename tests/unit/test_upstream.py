from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pybase16384
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from chattts_triton.errors import ModelLoadError
from chattts_triton.export import checkpoint as layout
from chattts_triton.export import upstream
from chattts_triton.export.mel_spectrogram import MelSpectrogram, hz_to_mel, mel_to_hz

TEXT = "你好世界，今天天气怎么样"


@pytest.fixture(scope="module")
def chat(tiny_checkpoint: Path) -> Any:
    return upstream.load_upstream_chat(tiny_checkpoint)


@pytest.fixture
def damaged(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint whose files may be replaced one by one; the untouched ones are links."""
    for path in tiny_checkpoint.rglob("*"):
        target = tmp_path / "damaged" / path.relative_to(tiny_checkpoint)
        if path.is_dir():
            target.mkdir(parents=True)
        else:
            target.symlink_to(path)
    return tmp_path / "damaged"


@pytest.fixture
def speaker() -> torch.Tensor:
    return torch.randn(768, generator=torch.Generator().manual_seed(0))


def edit_tensors(path: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(path)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    path.unlink()
    save_file(tensors, path)


def test_upstreams_own_load_accepts_the_standin(chat: Any) -> None:
    assert chat.has_loaded(use_decoder=True)
    assert chat.has_loaded(use_decoder=False)
    assert chat.tokenizer.len == 21178


def test_every_module_got_the_tensors_of_the_file(chat: Any, tiny_checkpoint: Path) -> None:
    modules = {
        layout.EMBED: chat.embed,
        layout.DECODER: chat.decoder,
        layout.DVAE: chat.dvae,
        layout.VOCOS: chat.vocos,
        layout.GPT: chat.gpt.gpt,
    }
    for name, module in modules.items():
        stored = load_file(tiny_checkpoint / name)
        stored.pop("embed_tokens.weight", None)  # upstream drops it
        loaded = module.state_dict()
        assert loaded.keys() == stored.keys()
        assert all(torch.equal(loaded[key], stored[key]) for key in stored)


def test_the_shared_default_config_of_upstream_keeps_its_dims(chat: Any) -> None:
    untouched = upstream.import_upstream().Chat().config

    assert (chat.config.gpt.num_hidden_layers, untouched.gpt.num_hidden_layers) == (2, 20)
    assert (chat.config.decoder.hidden, untouched.decoder.hidden) == (64, 512)
    assert untouched.vocos.backbone.init_args.num_layers == 8
    assert untouched.dvae.vq.dim == 1024


def test_generation_depends_on_text_and_seed_and_repeats(chat: Any, speaker: torch.Tensor) -> None:
    runs = {
        key: upstream.reference_codes(chat, text, speaker, seed, max_new_codes=12)
        for key, text, seed in (
            ("first", TEXT, 1),
            ("again", TEXT, 1),
            ("seed", TEXT, 2),
            ("text", "Hello there", 1),
        )
    }

    codes, hiddens = runs["first"]
    assert codes.dtype == np.int64
    assert hiddens.dtype == np.float32
    assert codes.shape == (len(codes), 4)
    assert hiddens.shape == (len(codes), 768)
    assert ((codes >= 0) & (codes < 625)).all()
    assert np.array_equal(codes, runs["again"][0])
    assert np.array_equal(hiddens, runs["again"][1])
    assert not np.array_equal(codes, runs["seed"][0])
    assert not np.array_equal(codes, runs["text"][0])


def test_a_speaker_string_and_its_vector_speak_alike(chat: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        string = chat.speaker.sample_random()
    vector = torch.from_numpy(chat.speaker._decode(string)).float()

    by_string = upstream.reference_codes(chat, TEXT, string, 1, max_new_codes=4)[1]
    by_vector = upstream.reference_codes(chat, TEXT, vector, 1, max_new_codes=4)[1]

    # Upstream normalises a decoded string in float16, hence not bit for bit.
    assert np.abs(by_string[0] - by_vector[0]).max() < 0.02


def test_voice_and_speed_reach_the_model(chat: Any, speaker: torch.Tensor) -> None:
    first = upstream.reference_codes(chat, TEXT, speaker, 1, max_new_codes=2)[1]
    voice = upstream.reference_codes(chat, TEXT, -speaker, 1, max_new_codes=2)[1]
    speed = upstream.reference_codes(chat, TEXT, speaker, 1, max_new_codes=2, speed=0)[1]

    assert np.abs(first[0] - voice[0]).max() > 0.1
    assert np.abs(first[0] - speed[0]).max() > 0.1


def test_the_end_code_comes_at_a_natural_rate(chat: Any, speaker: torch.Tensor) -> None:
    lengths = [
        len(upstream.reference_codes(chat, TEXT, speaker, seed, max_new_codes=100)[0])
        for seed in range(6)
    ]

    assert min(lengths) < 100
    assert sum(lengths) / len(lengths) > 20


def test_audio_has_512_samples_a_step_and_is_neither_silent_nor_clipped(
    chat: Any, speaker: torch.Tensor
) -> None:
    codes, hiddens = upstream.reference_codes(chat, TEXT, speaker, 1, max_new_codes=40)

    audio = upstream.reference_audio(chat, hiddens)

    assert audio.dtype == np.float32
    assert audio.shape == (512 * len(codes) - 256,)
    assert 0.02 < math.sqrt(float(np.square(audio).mean())) < 0.3
    assert np.abs(audio).max() < 1.0


def test_codes_through_the_dvae_decoder_are_audio_too(chat: Any, speaker: torch.Tensor) -> None:
    codes, _ = upstream.reference_codes(chat, TEXT, speaker, 1, max_new_codes=10)

    audio = chat._decode_to_wavs([torch.from_numpy(codes)], use_decoder=False)[0]

    assert audio.shape == (512 * len(codes) - 256,)
    assert 0.02 < math.sqrt(float(np.square(audio).mean())) < 0.3


def test_a_voice_sample_becomes_varied_codes(chat: Any) -> None:
    noise = torch.randn(24_000, generator=torch.Generator().manual_seed(0))
    swelling = noise * torch.logspace(-4, 0, 24_000)

    codes = chat.dvae.sample_audio(swelling)

    assert codes.shape == (4, 47)
    assert all(len(row.unique()) > 5 for row in codes)


def test_loading_and_generating_leave_the_process_wide_random_state(
    chat: Any, tiny_checkpoint: Path, speaker: torch.Tensor
) -> None:
    before = torch.get_rng_state()

    upstream.load_upstream_chat(tiny_checkpoint)
    upstream.reference_codes(chat, TEXT, speaker, 1, max_new_codes=2)

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "text",
    [
        "你好世界，今天天气怎么样。",
        "Hello World, this IS a Test.",
        "我爱Python和ＡＢＣ 编程。、，",
        "[Stts][spk_emb][speed_5]你好[uv_break]abc[laugh][Ptts]",
        "[LAUGH][cough] [UNK] [PAD]",
        "café naïve İstanbul don't I’m",
        "𠀀😀\u200b\ufeff　全角\n\t１２３",
        "a" * 101,
        "你" * 400,
        " ",
        "",
    ],
)
def test_the_plain_tokenizer_gives_upstreams_ids(
    text: str, chat: Any, tiny_checkpoint: Path
) -> None:
    plain = Tokenizer.from_file(str(tiny_checkpoint / layout.TOKENIZER))
    plain.no_padding()
    plain.no_truncation()

    ids = plain.encode(text, add_special_tokens=False).ids

    wanted = chat.tokenizer.encode([text], num_vq=4)[0][0, :, 0].tolist()
    assert ids == wanted


def test_a_missing_file_is_named(damaged: Path) -> None:
    (damaged / layout.VOCOS).unlink()

    with pytest.raises(ModelLoadError, match=r"Vocos\.safetensors: missing"):
        upstream.load_upstream_chat(damaged)


def test_a_file_that_is_no_safetensors_is_named(damaged: Path) -> None:
    (damaged / layout.DECODER).unlink()
    (damaged / layout.DECODER).write_bytes(b"not tensors")

    with pytest.raises(ModelLoadError, match=r"Decoder\.safetensors: cannot be read"):
        upstream.load_upstream_chat(damaged)


def test_a_tensor_missing_from_the_gpt_is_an_error_not_random_numbers(damaged: Path) -> None:
    edit_tensors(damaged / layout.GPT, **{"layers.1.mlp.up_proj.weight": None})

    with pytest.raises(ModelLoadError, match=r"tensor layers\.1\.mlp\.up_proj\.weight is missing"):
        upstream.load_upstream_chat(damaged)


def test_a_tensor_missing_from_another_file_is_an_error(damaged: Path) -> None:
    edit_tensors(damaged / layout.VOCOS, **{"head.out.bias": None})

    with pytest.raises(ModelLoadError, match=r"(?s)ChatTTS cannot load it: .*head\.out\.bias"):
        upstream.load_upstream_chat(damaged)


def test_a_tensor_that_tells_a_dim_is_named_where_it_is_missing(damaged: Path) -> None:
    edit_tensors(damaged / layout.DVAE, **{"encoder.conv_in.0.weight": None})

    with pytest.raises(ModelLoadError, match=r"encoder\.conv_in\.0\.weight"):
        upstream.load_upstream_chat(damaged)


def test_speaker_statistics_of_a_checkpoint_win_over_the_packages(damaged: Path) -> None:
    values = np.linspace(0.5, 1.5, 2 * 768, dtype=np.float16)
    text = pybase16384.encode_to_string(values.tobytes())
    (damaged / upstream.SPK_STAT).write_text(text + "\n", encoding="utf-8")

    chat = upstream.load_upstream_chat(damaged)

    assert upstream.read_spk_stat(damaged) == text
    assert np.array_equal(chat.speaker.std.numpy(), values[:768])
    assert np.array_equal(chat.speaker.mean.numpy(), values[768:])


@pytest.mark.parametrize(
    "text",
    [
        pybase16384.encode_to_string(np.zeros(2 * 256, dtype=np.float16).tobytes()),
        "no base16384 at all",
        "a",
        "",
    ],
)
def test_speaker_statistics_of_another_width_are_refused(text: str, damaged: Path) -> None:
    (damaged / upstream.SPK_STAT).write_text(text, encoding="utf-8")

    with pytest.raises(ModelLoadError, match=r"spk_stat\.txt: got \d+ values, wanted 1536"):
        upstream.load_upstream_chat(damaged)


def test_speaker_statistics_that_are_no_text_are_refused(damaged: Path) -> None:
    (damaged / upstream.SPK_STAT).write_bytes(b"\xff\xfe\xff")

    with pytest.raises(ModelLoadError, match=r"spk_stat\.txt: cannot be read"):
        upstream.read_spk_stat(damaged)


def test_a_checkpoint_without_statistics_has_those_of_the_package(tiny_checkpoint: Path) -> None:
    assert upstream.read_spk_stat(tiny_checkpoint) == upstream.load_spk_stat()
    assert upstream.load_spk_stat() == upstream.import_upstream().Chat().config.spk_stat


def test_the_published_hashes_cover_the_layout() -> None:
    hashes = upstream.checkpoint_sha256()

    assert set(hashes) == set(layout.FILES)
    assert all(len(digest) == 64 for digest in hashes.values())
    assert len(set(hashes.values())) == len(layout.FILES)


def test_the_homophone_map_is_that_of_the_package() -> None:
    characters = upstream.homophones_map()

    assert len(characters) == 16425
    assert characters["雎"] == "居"
    assert all(len(key) == 1 and len(value) == 1 for key, value in characters.items())


def test_data_of_a_package_that_is_not_installed_is_one_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    for read in (upstream.checkpoint_sha256, upstream.homophones_map, upstream.load_spk_stat):
        with pytest.raises(ModelLoadError, match=r"install chattts-triton\[export\]"):
            read()


def test_a_package_without_its_data_files_is_one_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = importlib.machinery.ModuleSpec("ChatTTS", loader=None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    for read in (upstream.checkpoint_sha256, upstream.homophones_map, upstream.load_spk_stat):
        with pytest.raises(ModelLoadError, match=f"{tmp_path}.*: cannot be read"):
            read()


def test_a_hash_list_that_lacks_a_file_is_one_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "res").mkdir()
    (tmp_path / "res" / "sha256_map.json").write_text(json.dumps({"other": "0"}))
    spec = importlib.machinery.ModuleSpec("ChatTTS", loader=None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    with pytest.raises(ModelLoadError, match="sha256_asset_gpt_config_json"):
        upstream.checkpoint_sha256()


def test_upstream_that_cannot_be_imported_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ChatTTS", None)  # makes `import ChatTTS` an ImportError

    with pytest.raises(ModelLoadError, match=r"install chattts-triton\[export\]"):
        upstream.import_upstream()


def test_an_undeclared_import_of_upstream_leaves_no_placeholder_behind() -> None:
    with upstream._placeholder("a_package_that_nobody_has"):
        importlib.import_module("a_package_that_nobody_has")

    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("a_package_that_nobody_has")


def test_an_importable_module_gets_no_placeholder() -> None:
    with upstream._placeholder("json"):
        assert sys.modules["json"] is json


def test_the_standin_of_torchaudio_has_what_upstream_and_vocos_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, module in upstream._torchaudio_standin().items():
        monkeypatch.setitem(sys.modules, name, module)

    torchaudio = importlib.import_module("torchaudio")
    functional = importlib.import_module("torchaudio.functional.functional")

    assert torchaudio.transforms.MelSpectrogram is MelSpectrogram
    assert (functional._hz_to_mel, functional._mel_to_hz) == (hz_to_mel, mel_to_hz)
    assert importlib.util.find_spec("torchaudio") is not None


def plain_mel(audio: npt.NDArray[np.float64], center: bool) -> npt.NDArray[np.float64]:
    """The formula frame by frame and filter by filter, in float64."""
    n_fft, hop, n_mels, rate = 1024, 256, 100, 24_000
    if center:
        audio = np.pad(audio, n_fft // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = [700 * (10 ** (top * i / (n_mels + 1) / 2595) - 1) for i in range(n_mels + 2)]
    frames = range(0, len(audio) - n_fft + 1, hop)
    mel = np.zeros((n_mels, len(frames)))
    for frame, start in enumerate(frames):
        magnitude = np.abs(np.fft.rfft(audio[start : start + n_fft] * window))
        for i in range(n_mels):
            low, peak, high = edges[i : i + 3]
            for k in range(len(magnitude)):
                hz = k * rate / n_fft
                if low < hz <= peak:
                    mel[i, frame] += magnitude[k] * (hz - low) / (peak - low)
                elif peak < hz < high:
                    mel[i, frame] += magnitude[k] * (high - hz) / (high - peak)
    return mel


@pytest.mark.parametrize("center", [True, False])
def test_the_mel_spectrogram_follows_the_formula(center: bool) -> None:
    audio = np.random.default_rng(0).standard_normal((2, 1500)).astype(np.float32)
    module = MelSpectrogram(24_000, 1024, 256, 100, center=center, power=1)

    mel = module(torch.from_numpy(audio)).numpy()

    wanted = np.stack([plain_mel(row.astype(np.float64), center) for row in audio])
    assert mel.shape == wanted.shape
    # The slopes of the filters are differences of float32 frequencies, good to about 1e-6.
    assert np.abs(mel - wanted).max() < 1e-5 * wanted.max()


def test_one_dimensional_audio_gives_a_two_dimensional_mel() -> None:
    module = MelSpectrogram(24_000, 1024, 256, 100)

    assert module(torch.zeros(2560)).shape == (100, 11)


def test_the_mel_spectrogram_stores_the_buffers_of_a_checkpoint(tiny_checkpoint: Path) -> None:
    module = MelSpectrogram(24_000, 1024, 256, 100)

    stored = load_file(tiny_checkpoint / layout.VOCOS)

    prefix = "feature_extractor.mel_spec."
    for name, tensor in module.state_dict().items():
        assert torch.equal(stored[prefix + name], tensor)
    assert set(module.state_dict()) == {"spectrogram.window", "mel_scale.fb"}


def test_a_power_spectrum_is_refused() -> None:
    with pytest.raises(ValueError, match="power: got 2, wanted 1"):
        MelSpectrogram(24_000, 1024, 256, 100, power=2)


def test_the_mel_scale_is_inverted_by_its_inverse() -> None:
    hz = [0.0, 1.0, 700.0, 12_000.0]

    back = mel_to_hz(torch.tensor([hz_to_mel(value) for value in hz], dtype=torch.float64))

    assert back.tolist() == pytest.approx(hz, abs=1e-9)
    assert hz_to_mel(1000.0) == pytest.approx(999.9855, abs=1e-3)
