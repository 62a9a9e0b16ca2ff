"""What another precision changes, held against plain NumPy and a model that is rounded by hand."""

from __future__ import annotations

import json
import math
import os
import shutil

import numpy as np
import pytest

from chattts_triton.cli.main import main
from chattts_triton.engine.model_runner import ModelRunner
from chattts_triton.errors import InvalidRequestError
from chattts_triton.export.compare import (
    COMPARED,
    MAX_TEXTS,
    Comparison,
    agreement,
    as_table,
    compare_precisions,
    kl_divergence,
    log_mel_distance_db,
)
from chattts_triton.export.teacher_forcing import (
    TEXTS,
    draw_codes,
    force,
    read_prompts,
)
from chattts_triton.manifest import load_manifest

STEPS = 12


@pytest.fixture(scope="module")
def compared(tiny_checkpoint):
    comparisons = compare_precisions(tiny_checkpoint, COMPARED, num_texts=2, max_steps=STEPS)
    return {comparison.precision: comparison for comparison in comparisons}


@pytest.fixture
def spoken(tiny_repositories):
    """A prompt, a runner of fp32, and the codes that it draws."""
    repository = tiny_repositories["fp32"]
    manifest = load_manifest(repository)
    (prompt,) = read_prompts(manifest, repository, 1)
    runner = ModelRunner(
        manifest,
        manifest.member_directory(repository, "gpt"),
        max_num_seqs=1,
        max_model_len=128,
        threads=1,
        exact_batching=True,
    )
    return prompt, runner, draw_codes(runner, prompt, STEPS)


def test_agreement_is_the_share_of_rows_with_the_same_largest_logit():
    wanted = np.zeros((4, 2, 3), dtype=np.float32)
    wanted[:, :, 1] = 1.0
    got = wanted.copy()
    got[3, 0, 2] = 2.0

    assert agreement(got, wanted) == [0.75, 1.0]


def test_the_divergence_is_that_of_the_definition():
    random = np.random.default_rng(0)
    got, wanted = random.standard_normal((2, 5, 2, 7)).astype(np.float32)

    divergence = kl_divergence(got, wanted)

    for head in range(2):
        total = 0.0
        for row in range(5):
            p, q = (np.exp(side[row, head].astype(float)) for side in (wanted, got))
            p, q = p / p.sum(), q / q.sum()
            total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert divergence[head] == pytest.approx(total / 5)
    assert kl_divergence(wanted + 3.0, wanted) == pytest.approx([0.0, 0.0], abs=1e-6)


def test_half_the_amplitude_is_6_db_and_silence_is_silence():
    audio = np.random.default_rng(0).uniform(-0.5, 0.5, 24_000).astype(np.float32)
    faint = np.full(24_000, 1e-7, dtype=np.float32)

    assert log_mel_distance_db(audio / 2, audio) == pytest.approx(20 * math.log10(2), abs=1e-3)
    assert log_mel_distance_db(audio, audio) == 0.0
    assert log_mel_distance_db(faint, np.zeros_like(faint)) == 0.0


def test_forced_rows_are_what_the_codes_were_drawn_from(spoken):
    prompt, runner, codes = spoken

    passes = force(runner, prompt, codes)

    assert codes.shape == (STEPS, 4)
    assert passes.logits.shape == (STEPS, 4, runner.dims.num_audio_tokens)
    assert passes.hiddens.shape == (STEPS, runner.dims.hidden_size)
    # The last row is that of one pass over the prompt and all codes but the last.
    embeds = [runner.embed_prompt(prompt.text_ids, prompt.speaker_embedding)]
    embeds.append(runner.embed_codes(codes[:-1]))
    logits, hidden = runner.prefill(0, np.concatenate(embeds))
    assert np.abs(passes.logits[-1] - logits[0]).max() <= 1e-4
    assert np.abs(passes.hiddens[-1] - hidden[0]).max() <= 1e-4


def test_codes_end_where_the_model_ends_them(spoken):
    """Some seed of a random model draws the end code early; it is no step of the audio."""
    prompt, runner, _ = spoken
    lengths = set()
    for seed in range(5):
        seeded = type(prompt)(prompt.text_ids, prompt.speaker_embedding, seed)
        codes = draw_codes(runner, seeded, 60)
        assert (codes != runner.dims.eos_code).all()
        lengths.add(len(codes))

    assert 1 <= min(lengths) < max(lengths) <= 60


def test_the_same_graph_forced_twice_is_the_same(spoken):
    prompt, runner, codes = spoken

    first, second = force(runner, prompt, codes), force(runner, prompt, codes)

    assert first.logits.tobytes() == second.logits.tobytes()
    assert agreement(first.logits, second.logits) == [1.0] * 4


def test_both_precisions_differ_from_fp32_and_16_bits_far_less(compared):
    assert set(compared) == {"int8", "fp16"}
    int8, fp16 = compared["int8"], compared["fp16"]
    for each in (int8, fp16):
        assert each.device == "cpu"
        assert each.num_steps <= 2 * STEPS
        assert len(each.agreement) == len(each.kl) == 4
        assert min(each.kl) > 0
        assert each.log_mel_db > 0
    assert int8.num_steps == fp16.num_steps
    assert max(fp16.kl) < min(int8.kl) / 10
    assert fp16.largest_hidden_difference < int8.largest_hidden_difference / 3
    assert fp16.log_mel_db < int8.log_mel_db
    assert max(int8.kl) < 0.05
    assert min(fp16.agreement) >= 0.9
    assert int8.gpt_bytes < fp16.gpt_bytes


def test_a_closed_vocabulary_is_asked_only_for_what_it_knows(spelling_repository, few_words):
    manifest = load_manifest(spelling_repository)

    prompts = read_prompts(manifest, spelling_repository, MAX_TEXTS)

    # It knows 你 and 好 and too few words for any text here, so it spells them all, and has two
    # voices, which take turns.
    assert len(prompts) == MAX_TEXTS
    speakers = [prompt.speaker_embedding.tobytes() for prompt in prompts]
    assert len(set(speakers)) == 2
    assert speakers[0] == speakers[2] != speakers[1]


def test_the_demonstration_voice_knows_the_english_texts(demo_repository):
    manifest = load_manifest(demo_repository)

    prompts = read_prompts(manifest, demo_repository, MAX_TEXTS)

    assert len(prompts) == sum(text.isascii() for text in TEXTS) == 8


@pytest.fixture(scope="module")
def demo_repository(demo_checkpoint, tmp_path_factory):
    from chattts_triton.export.repository import export

    repository = tmp_path_factory.mktemp("demo") / "model_repository"
    export(demo_checkpoint, repository, "int8")
    return repository


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["int4"], 1, 1), "precision: got 'int4', wanted int8 or fp16"),
        ((["fp32"], 1, 1), "precision: got 'fp32', wanted int8 or fp16"),
        ((["int8"], 0, 1), f"texts: got 0, wanted 1 to {MAX_TEXTS}"),
        ((["int8"], MAX_TEXTS + 1, 1), f"texts: got {MAX_TEXTS + 1}, wanted"),
        ((["int8"], 1, 2049), "steps: got 2049, wanted 1 to 2048"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_export(tmp_path, arguments, message):
    precisions, num_texts, max_steps = arguments

    with pytest.raises(InvalidRequestError, match=message):
        compare_precisions(
            tmp_path / "nothing", precisions, num_texts=num_texts, max_steps=max_steps
        )


@pytest.mark.parametrize(
    ("agreement", "kl", "faults"),
    [
        ([1.0, 0.9, 1.0, 1.0], [1e-2, 0.0, 0.0, 0.0], []),
        ([1.0, 0.89, 1.0, 1.0], [0.0] * 4, ["same code: 0.890, wanted 0.9"]),
        ([1.0] * 4, [0.0, 0.0, 0.0, 2e-2], ["KL: 2.0e-02, wanted at most 1e-02"]),
    ],
)
def test_each_codebook_must_keep_to_the_bound(agreement, kl, faults):
    assert Comparison("int8", "cpu", 0, 1, agreement, kl, 0.0, 0.0).faults == faults


def test_steps_that_no_slot_holds_are_refused(tiny_checkpoint, tmp_path):
    copy = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, copy, copy_function=os.link)
    path = copy / "asset/gpt/config.json"
    config = json.loads(path.read_text()) | {"max_position_embeddings": 64}
    path.unlink()
    path.write_text(json.dumps(config))

    with pytest.raises(InvalidRequestError, match=r"steps: got 60, wanted at most \d\d with this"):
        compare_precisions(copy, ["int8"], num_texts=1, max_steps=60)


def test_the_table_has_a_row_for_each_precision():
    comparison = Comparison(
        "int8", "cpu", 7_000_000, 40, [1.0, 0.95, 0.9, 1.0], [1e-4, 2e-4, 3e-4, 4e-4], 0.25, 0.5
    )

    rows = as_table([comparison]).splitlines()

    assert rows[2] == (
        "| int8 | 7.0 | cpu | 40 | 100.0 / 95.0 / 90.0 / 100.0 "
        "| 1.0e-04 / 2.0e-04 / 3.0e-04 / 4.0e-04 | 2.5e-01 | 0.500 |"
    )
    assert len({row.count("|") for row in rows}) == 1


def test_the_command_prints_the_table_and_writes_the_figures(tiny_checkpoint, tmp_path, capsys):
    path = tmp_path / "figures.json"

    code = main(
        [
            *("compare-precision", f"--checkpoint={tiny_checkpoint}", "--precision", "int8"),
            *("--texts=1", "--steps=3", f"--json={path}"),
        ]
    )

    assert code == 0
    (written,) = json.loads(path.read_text())["comparisons"]
    assert written["precision"] == "int8"
    assert written["num_steps"] == 3
    assert capsys.readouterr().out == f"{as_table([Comparison(**written)])}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--texts=0"], "argument --texts: got '0', wanted a whole number from 1"),
        (["--steps=ten"], "argument --steps: got 'ten', wanted a whole number"),
        (["--precision", "fp32"], "argument --precision: invalid choice: 'fp32'"),
    ],
)
def test_wrong_use_of_the_command_is_exit_2(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        main(["compare-precision", f"--checkpoint={tmp_path}", *arguments])

    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_found_out_first(tmp_path, capsys):
    path = tmp_path / "missing" / "figures.json"

    code = main(["compare-precision", f"--checkpoint={tmp_path}", f"--json={path}"])

    assert code == 1
    assert f"--json {path}: cannot be written" in capsys.readouterr().err
