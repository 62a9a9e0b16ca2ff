"""Upstream's own ChatTTS, unmodified, over a checkpoint of any dims: the oracle of parity tests.

The only place of the package that imports ChatTTS, and the only one that reads its data files.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.machinery
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pybase16384
import torch
from safetensors import SafetensorError

from chattts_triton.constants import DEFAULT_SPEED
from chattts_triton.errors import ModelLoadError
from chattts_triton.export import checkpoint as layout
from chattts_triton.export.checkpoint import Checkpoint, TensorFile
from chattts_triton.export.mel_spectrogram import MelSpectrogram, hz_to_mel, mel_to_hz
from chattts_triton.manifest import Dims

if TYPE_CHECKING:
    from ChatTTS import Chat

SPK_STAT = "asset/spk_stat.txt"  # ours: speaker statistics that belong to one checkpoint


def import_upstream() -> ModuleType:
    """The package ChatTTS, importable also where torchaudio is not.

    Raises:
        ModelLoadError: ChatTTS or something it needs is not installed.
    """
    with warnings.catch_warnings():
        # On their first import these packages raise syntax and deprecation warnings of their own.
        warnings.simplefilter("ignore")
        _ensure_torchaudio()
        with _placeholder("requests"):
            try:
                return importlib.import_module("ChatTTS")
            except ImportError as error:
                raise ModelLoadError(
                    f"ChatTTS cannot be imported ({error}); install chattts-triton[export]"
                ) from error


def load_upstream_chat(checkpoint: Path) -> Chat:
    """Upstream's `Chat` on the CPU, its dims set from the checkpoint, loaded by its own `_load`.

    Neither upstream's shared default config nor the process-wide random state is changed.

    Raises:
        ModelLoadError: A file is missing, or its tensors are not what upstream's modules expect.
    """
    dims = Checkpoint.open(checkpoint).dims
    chat = import_upstream().Chat()
    # The config's defaults are class attributes, shared by every Chat of the process.
    chat.config = copy.deepcopy(chat.config)
    _set_gpt_dims(chat.config, dims)
    _set_decoder_dims(chat.config, checkpoint)
    _set_dvae_dims(chat.config, checkpoint, dims)
    _set_vocos_dims(chat.config, checkpoint)
    chat.config.spk_stat = _checked_spk_stat(checkpoint, dims.hidden_size)
    paths = {name: str(checkpoint / path) for name, path in asdict(chat.config.path).items()}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            chat._load(device=torch.device("cpu"), **paths)
        except (OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
            raise ModelLoadError(f"{checkpoint}: ChatTTS cannot load it: {error}") from error
    _check_gpt_is_complete(chat, checkpoint)
    return chat


def reference_codes(
    chat: Chat,
    text: str,
    speaker_embedding: str | torch.Tensor,
    seed: int,
    max_new_codes: int,
    speed: int = DEFAULT_SPEED,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """What upstream generates for one text with its default options.

    Upstream starts again, without a fresh seed, when the end code comes at the very first step.

    Args:
        chat: From `load_upstream_chat`.
        text: Already normalised; it goes to the tokenizer as it is.
        speaker_embedding: A ChatTTS speaker string, or (hidden,) float32 of any norm.
        seed: Of torch's process-wide generator, whose state is restored afterwards.
        max_new_codes: The cap on steps.
        speed: 0 to 9.

    Returns:
        codes (T, 4) and hiddens (T, hidden); the step that drew the end code is in neither.
    """
    params = chat.InferCodeParams(
        prompt=f"[speed_{speed}]",
        spk_emb=speaker_embedding,
        max_new_token=max_new_codes,
        show_tqdm=False,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # It passes the cache by a name that transformers 5 calls deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        torch.default_generator.manual_seed(seed)
        outputs = next(chat._infer_code([text], False, chat.device, True, params))
    codes: npt.NDArray[np.int64] = outputs.ids[0].numpy().astype(np.int64)
    hiddens: npt.NDArray[np.float32] = outputs.hiddens[0].numpy().astype(np.float32)
    return codes, hiddens


def reference_audio(chat: Chat, hiddens: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Upstream's waveform, (S,), of (T, hidden) hidden states; T is at least 1."""
    audio: npt.NDArray[np.float32] = chat._decode_to_wavs(
        [torch.from_numpy(np.ascontiguousarray(hiddens))], use_decoder=True
    )[0]
    return audio


def read_spk_stat(checkpoint: Path) -> str:
    """Speaker statistics as base16384 text: the checkpoint's own, else those of the package.

    Raises:
        ModelLoadError: The checkpoint's file cannot be read.
    """
    path = checkpoint / SPK_STAT
    if not path.exists():
        return load_spk_stat()
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error


def load_spk_stat() -> str:
    """The speaker statistics of the package, for the published weights of hidden size 768."""
    # They are a default in a file of dataclasses, which can be run without the package around it.
    path = _package_directory() / "config" / "config.py"
    spec = importlib.util.spec_from_file_location("_chattts_config", path)
    if spec is None or spec.loader is None:
        raise ModelLoadError(f"{path}: cannot be read")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    return str(module.Config.spk_stat)


def homophones_map() -> dict[str, str]:
    """Characters that the published model misreads, each with one that it reads right."""
    return _package_json("homophones_map.json")


def checkpoint_sha256() -> dict[str, str]:
    """SHA-256 of every published file by its name in the layout, `asset/Decoder.safetensors` etc.

    Raises:
        ModelLoadError: ChatTTS is not installed, or its list lacks a file.
    """
    hashes = _package_json("sha256_map.json")
    try:
        return {
            name: hashes["sha256_" + name.replace("/", "_").replace(".", "_")]
            for name in layout.FILES
        }
    except KeyError as error:
        raise ModelLoadError(f"ChatTTS: its list of hashes has no key {error}") from error


def _package_directory() -> Path:
    """Where ChatTTS is installed; importlib.resources would import it, and torchaudio with it."""
    spec = importlib.util.find_spec("ChatTTS")
    if spec is None or not spec.submodule_search_locations:
        raise ModelLoadError("ChatTTS is not installed; install chattts-triton[export]")
    return Path(spec.submodule_search_locations[0])


def _package_json(name: str) -> dict[str, str]:
    path = _package_directory() / "res" / name
    try:
        content: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    return content


def _ensure_torchaudio() -> None:
    try:
        importlib.import_module("torchaudio")
    except (ImportError, OSError):
        # PyPI's wheels load CUDA's libraries, which a CPU build of torch does not bring.
        sys.modules.update(_torchaudio_standin())


def _torchaudio_standin() -> dict[str, ModuleType]:
    root, transforms, functional, inner = modules = [
        _empty_module(name)
        for name in (
            "torchaudio",
            "torchaudio.transforms",
            "torchaudio.functional",
            "torchaudio.functional.functional",
        )
    ]
    vars(root).update(transforms=transforms, functional=functional)
    vars(transforms).update(MelSpectrogram=MelSpectrogram)
    vars(functional).update(functional=inner)
    vars(inner).update(_hz_to_mel=hz_to_mel, _mel_to_hz=mel_to_hz)
    return {module.__name__: module for module in modules}


def _empty_module(name: str) -> ModuleType:
    module = ModuleType(name)
    # `importlib.util.find_spec`, which transformers asks about optional packages, wants a spec.
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []
    return module


@contextlib.contextmanager
def _placeholder(name: str) -> Iterator[None]:
    """Let `import name` succeed within the block where that package is not installed.

    ChatTTS imports `requests` for its downloader, which nothing here calls, undeclared.
    """
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        yield
        return
    sys.modules[name] = _empty_module(name)
    try:
        yield
    finally:
        del sys.modules[name]


def _set_gpt_dims(config: Any, dims: Dims) -> None:
    for target in (config.gpt, config.embed):
        target.hidden_size = dims.hidden_size
        target.num_audio_tokens = dims.num_audio_tokens
        target.num_text_tokens = dims.num_text_tokens
        target.num_vq = dims.num_vq
    config.gpt.intermediate_size = dims.intermediate_size
    config.gpt.num_attention_heads = dims.num_attention_heads
    config.gpt.num_hidden_layers = dims.num_hidden_layers
    config.gpt.max_position_embeddings = dims.max_position_embeddings


def _set_decoder_dims(config: Any, checkpoint: Path) -> None:
    with TensorFile(checkpoint / layout.DECODER) as file:
        _set_conv_stack(config.decoder, file, "decoder")


def _set_dvae_dims(config: Any, checkpoint: Path, dims: Dims) -> None:
    with TensorFile(checkpoint / layout.DVAE) as file:
        _set_conv_stack(config.dvae.encoder, file, "encoder")
        _set_conv_stack(config.dvae.decoder, file, "decoder")
        groups = _count(file, "vq_layer.quantizer.rvqs")
        num_levels, group_dim = file.shape("vq_layer.quantizer.rvqs.0.project_in.weight")
    config.dvae.vq.dim = groups * group_dim
    config.dvae.vq.G = groups
    config.dvae.vq.R = dims.num_vq // groups
    # The shapes do not tell the levels apart; all codes but the end code are their product.
    config.dvae.vq.levels = (round((dims.num_audio_tokens - 1) ** (1 / num_levels)),) * num_levels


def _set_vocos_dims(config: Any, checkpoint: Path) -> None:
    backbone = config.vocos.backbone.init_args
    with TensorFile(checkpoint / layout.VOCOS) as file:
        backbone.dim = file.shape("backbone.embed.weight")[0]
        backbone.intermediate_dim = file.shape("backbone.convnext.0.pwconv1.weight")[0]
        backbone.num_layers = _count(file, "backbone.convnext")
    config.vocos.head.init_args.dim = backbone.dim


def _set_conv_stack(target: Any, file: TensorFile, prefix: str) -> None:
    target.bn_dim, target.idim, _ = file.shape(f"{prefix}.conv_in.0.weight")
    target.odim, target.hidden, _ = file.shape(f"{prefix}.conv_out.weight")
    target.n_layer = _count(file, f"{prefix}.decoder_block")


def _count(file: TensorFile, prefix: str) -> int:
    """How many modules are numbered below `prefix`."""
    start = f"{prefix}."
    return len(
        {name[len(start) :].split(".")[0] for name in file.names() if name.startswith(start)}
    )


def _checked_spk_stat(checkpoint: Path, hidden_size: int) -> str:
    text = read_spk_stat(checkpoint)
    num_values = len(pybase16384.decode_from_string(text)) // np.dtype(np.float16).itemsize
    if num_values != 2 * hidden_size:
        raise ModelLoadError(
            f"{checkpoint / SPK_STAT}: got {num_values} values, wanted {2 * hidden_size} "
            "(deviation and mean of a speaker vector)"
        )
    return text


def _check_gpt_is_complete(chat: Chat, checkpoint: Path) -> None:
    """Transformers fills a missing tensor with random numbers and only logs it."""
    with TensorFile(checkpoint / layout.GPT) as file:
        missing = sorted(chat.gpt.gpt.state_dict().keys() - file.names())
    if missing:
        raise ModelLoadError(f"{checkpoint / layout.GPT}: tensor {missing[0]} is missing")
