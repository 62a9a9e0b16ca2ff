from __future__ import annotations

import hashlib
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from chattts_triton.cli.main import main
from chattts_triton.errors import InvalidRequestError, ModelLoadError
from chattts_triton.export import checkpoint
from chattts_triton.export.standin import SIZES, checkpoint_tensors, write_standin
from chattts_triton.export.tokenizer_standin import SPECIAL_TOKENS
from chattts_triton.export.upstream import checkpoint_sha256, import_upstream


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> Tokenizer:
    tokenizer: Tokenizer = Tokenizer.from_file(str(tiny_checkpoint / checkpoint.TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def hashes(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Writing beyond the limit fails, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_layout_is_complete_and_holds_nothing_else(tiny_checkpoint: Path) -> None:
    checkpoint.check_layout(tiny_checkpoint)

    assert set(hashes(tiny_checkpoint)) == set(checkpoint.FILES)
    assert [path.name for path in tiny_checkpoint.iterdir()] == ["asset"]


def test_every_file_may_be_read_by_whoever_may_read_the_others(tiny_checkpoint: Path) -> None:
    modes = {path.stat().st_mode for path in tiny_checkpoint.rglob("*") if path.is_file()}

    assert len(modes) == 1


def test_the_same_seed_gives_the_same_bytes(tiny_checkpoint: Path, tmp_path: Path) -> None:
    write_standin("tiny", tmp_path / "again", seed=0)

    assert hashes(tmp_path / "again") == hashes(tiny_checkpoint)


def test_another_seed_gives_other_tensors_in_every_file(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    write_standin("tiny", tmp_path / "other", seed=1)

    before, after = hashes(tiny_checkpoint), hashes(tmp_path / "other")
    same = {name for name in before if before[name] == after[name]}
    assert same == {name for name in checkpoint.FILES if name.endswith(".json")}


def test_the_process_wide_random_state_is_untouched(tmp_path: Path) -> None:
    before = torch.get_rng_state()

    write_standin("tiny", tmp_path / "out", seed=3)

    assert torch.equal(torch.get_rng_state(), before)


def test_all_tensors_are_finite_float32(tiny_checkpoint: Path) -> None:
    for path in tiny_checkpoint.rglob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                tensor = file.get_tensor(name)
                assert tensor.dtype == torch.float32, name
                assert torch.isfinite(tensor).all(), name


def test_full_has_the_keys_and_shapes_of_upstreams_default_config() -> None:
    """Holds the dry table of `full` against upstream's modules, both without any values."""
    from dataclasses import asdict

    upstream = import_upstream()  # first: transformers wants torchaudio too
    from transformers import LlamaConfig, LlamaModel

    config = upstream.core.Config()
    with torch.device("meta"):
        decoder = upstream.model.DVAE(
            decoder_config=asdict(config.decoder), dim=config.decoder.idim, device="meta"
        )
        embed = upstream.model.Embed(**asdict(config.embed))
        gpt = LlamaModel(LlamaConfig(**asdict(config.gpt)))
        parts = [
            upstream.core.instantiate_class((), asdict(part))
            for part in (
                config.vocos.feature_extractor,
                config.vocos.backbone,
                config.vocos.head,
            )
        ]
        vocos = upstream.core.Vocos(*parts)
    with torch.random.fork_rng(devices=[]):  # its quantiser cannot be built without values
        dvae = upstream.model.DVAE(
            decoder_config=asdict(config.dvae.decoder),
            encoder_config=asdict(config.dvae.encoder),
            vq_config=asdict(config.dvae.vq),
            dim=config.dvae.decoder.idim,
        )
    wanted = {
        checkpoint.GPT: gpt,
        checkpoint.EMBED: embed,
        checkpoint.DECODER: decoder,
        checkpoint.DVAE: dvae,
        checkpoint.VOCOS: vocos,
    }

    tables = dict(checkpoint_tensors(SIZES["full"], seed=0, device="meta"))

    assert {name: shapes(table) for name, table in tables.items()} == {
        name: shapes(module.state_dict()) for name, module in wanted.items()
    }


def shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def test_full_configs_are_byte_for_byte_the_published_ones(tiny_checkpoint: Path) -> None:
    """`tiny` differs in the GPT's dims only, so that file is compared with these put back."""
    published = checkpoint_sha256()
    config = json.loads((tiny_checkpoint / checkpoint.GPT_CONFIG).read_text())
    full = SIZES["full"]

    config |= {
        "intermediate_size": full.intermediate_size,
        "num_hidden_layers": full.num_layers,
        "vocab_size": full.vocab_size,
    }

    found = (json.dumps(config, indent=2) + "\n").encode()
    assert hashlib.sha256(found).hexdigest() == published[checkpoint.GPT_CONFIG]
    for name in (checkpoint.TOKENIZER_CONFIG, checkpoint.SPECIAL_TOKENS):
        assert hashlib.sha256((tiny_checkpoint / name).read_bytes()).hexdigest() == published[name]


def test_the_tokenizer_has_the_published_number_of_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 21178
    assert tokenizer.get_vocab_size(with_added_tokens=False) == 21128


def test_the_tokenizer_file_pads_and_truncates_like_the_published_one(
    tiny_checkpoint: Path,
) -> None:
    """Whoever loads tokenizer.json has to switch both off; so must the stand-in make them."""
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint / checkpoint.TOKENIZER))

    lengths = [len(tokenizer.encode(text).ids) for text in ("你好", "你" * 400)]

    assert lengths == [256, 256]


def test_every_special_token_is_one_id_in_order(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("".join(SPECIAL_TOKENS), add_special_tokens=False).ids

    assert ids == list(range(21128, 21178))


def test_all_han_and_latin_and_digits_are_in_the_vocabulary(tokenizer: Tokenizer) -> None:
    han = "".join(chr(point) for point in range(0x4E00, 0x9FA6))
    words = " Hello WORLD python3 x86 café ，。、,. ！？"

    ids = tokenizer.encode(han + words, add_special_tokens=False).ids

    assert tokenizer.token_to_id("[UNK]") not in ids
    assert len(set(ids[: len(han)])) == len(han)


def test_an_existing_checkpoint_is_replaced_and_its_neighbours_stay(tmp_path: Path) -> None:
    (tmp_path / "asset").mkdir()
    (tmp_path / "asset" / "old").write_text("old")
    (tmp_path / "notes.txt").write_text("keep")

    write_standin("tiny", tmp_path)

    assert not (tmp_path / "asset" / "old").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asset", "notes.txt"]


def test_a_full_disk_is_one_error_and_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "asset").mkdir()
    (tmp_path / "asset" / "old").write_text("old")

    with file_size_limit(1_000_000), pytest.raises(ModelLoadError, match="cannot write") as caught:
        write_standin("tiny", tmp_path)

    assert str(tmp_path) in str(caught.value)
    assert hashes(tmp_path) == {"asset/old": hashlib.sha256(b"old").hexdigest()}
    assert [path.name for path in tmp_path.iterdir()] == ["asset"]


def test_a_full_disk_leaves_no_new_directory(tmp_path: Path) -> None:
    with file_size_limit(1_000_000), pytest.raises(ModelLoadError):
        write_standin("tiny", tmp_path / "new")

    assert list(tmp_path.iterdir()) == []


def test_the_old_checkpoint_comes_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asset").mkdir()
    (tmp_path / "asset" / "old").write_text("old")
    rename = Path.rename

    def fail_for_the_new_one(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise PermissionError("not allowed")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new_one)

    with pytest.raises(ModelLoadError, match="not allowed"):
        write_standin("tiny", tmp_path)

    assert [path.name for path in tmp_path.rglob("*")] == ["asset", "old"]


def test_a_directory_that_cannot_be_made_is_one_line_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")

    status = main(["standin", "--size", "tiny", "--out", str(tmp_path / "file" / "out")])

    assert status == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert errors[0].startswith(
        f"chattts-triton standin: {tmp_path / 'file' / 'out'}: cannot write"
    )


def test_the_command_writes_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["standin", "--size", "tiny", "--out", str(tmp_path / "out"), "--seed", "5"])

    assert status == 0
    assert "noise" in capsys.readouterr().out
    checkpoint.check_layout(tmp_path / "out")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--size", "huge", "--out", "x"],
        ["--size", "tiny"],
        ["--out", "x"],
        ["--size", "tiny", "--out", "x", "--seed", "-1"],
        ["--size", "tiny", "--out", "x", "--seed", str(2**63)],
        ["--size", "tiny", "--out", "x", "--seed", "many"],
    ],
)
def test_wrong_use_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["standin", *arguments])

    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "seed", "field"), [("huge", 0, "size"), ("tiny", -1, "seed"), ("tiny", 2**63, "seed")]
)
def test_a_wrong_argument_is_refused_by_name(
    size: str, seed: int, field: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field}: got"):
        write_standin(size, tmp_path / "out", seed)

    assert list(tmp_path.iterdir()) == []
