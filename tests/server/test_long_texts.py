"""Long texts are spoken in segments, side by side, and come back as one audio."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from triton_calls import RunningServer, running_server, text_tensors

from chattts_triton.constants import num_audio_samples
from chattts_triton.export.repository import export
from chattts_triton.serving.preprocess import segment_seed

PARAGRAPH = (
    "四川美食确实以辣闻名，但也有不辣的选择。比如甜水面、赖汤圆、蛋烘糕、叶儿粑等，"
    "这些小吃口味温和，甜而不腻，也很受欢迎。今天天气很好，我们一起去公园走走，看看花，"
    "听听鸟叫。晚上回家以后，可以喝一杯热茶，读一本好书，然后早点休息。"
)
CAP = 20


def preprocessed(server: RunningServer, text: str, **options) -> dict[str, np.ndarray]:
    return server.call("preprocess", text_tensors(text, **options))


def segments_of(outputs: dict[str, np.ndarray]) -> list[str]:
    return [text.decode() for text in outputs["SEGMENT_TEXT"][0] if text]


def test_a_long_text_is_the_sum_of_its_segments_and_their_pauses(server: RunningServer):
    """B-39: nothing of the text is lost, and segment 0 has the seed itself."""
    seed = 42
    outputs = preprocessed(server, PARAGRAPH, SEED=seed)
    segments, pauses = segments_of(outputs), outputs["PAUSE_SAMPLES"][0]
    assert len(segments) > 1
    assert "".join(segments) == PARAGRAPH

    whole = server.speak_one(PARAGRAPH, SEED=seed, MAX_NEW_TOKENS=CAP)

    parts = []
    first_voice = server.call("preprocess", text_tensors("好", SEED=seed))["SPEAKER_EMBEDDING"]
    for index, (text, pause) in enumerate(zip(segments, pauses, strict=True)):
        inputs = preprocessed(server, text, SEED=segment_seed(seed, index), MAX_NEW_TOKENS=CAP)
        inputs["SPEAKER_EMBEDDING"] = first_voice
        del inputs["SEED_USED"], inputs["TRIM"], inputs["PAUSE_SAMPLES"]
        spoken = server.call("gpt", inputs)
        audio = server.call(
            "vocos_decoder",
            {
                "HIDDENS": spoken["HIDDENS"],
                "NUM_CODES": spoken["NUM_CODES"],
                "SEED": inputs["SEED"],
            },
        )["AUDIO"][0]
        parts += [audio, np.zeros(pause, dtype=np.float32)]
    assert pauses[-1] == 0
    assert all(pauses[:-1] > 0)
    assert whole.samples.tobytes() == np.concatenate(parts).tobytes()


def test_b_40_the_cap_is_in_proportion_to_each_segment_and_hitting_it_is_told(
    server: RunningServer,
):
    outputs = preprocessed(server, PARAGRAPH)
    segments = segments_of(outputs)

    assert outputs["MAX_NEW_CODES"][0].tolist() == [
        min(2048, 28 * len(text) + 94) for text in segments
    ]
    cut = server.speak_one(PARAGRAPH, SEED=1, MAX_NEW_TOKENS=3)
    assert cut.finish_reason == "length"
    assert len(cut.samples) == num_audio_samples(3) * len(segments) + sum(
        outputs["PAUSE_SAMPLES"][0].tolist()
    )


def test_texts_of_one_and_of_many_segments_go_together(server: RunningServer):
    texts, seeds = ["你好", PARAGRAPH, "Yes."], [1, 2, 3]

    together = server.speak(texts, SEED=seeds, MAX_NEW_TOKENS=CAP)

    for speech, text, seed in zip(together, texts, seeds, strict=True):
        alone = server.speak_one(text, SEED=seed, MAX_NEW_TOKENS=CAP)
        assert (speech.audio, speech.pcm16) == (alone.audio, alone.pcm16)


@pytest.mark.parametrize("text", ["字" * 5000, "好。" * 2500])
def test_the_longest_text_is_spoken_and_one_character_more_is_refused(
    server: RunningServer, text: str
):
    outputs = preprocessed(server, text)
    num_segments = len(segments_of(outputs))
    assert "".join(segments_of(outputs)) == text

    longest = server.call("chattts", text_tensors(text, SEED=1, MAX_NEW_TOKENS=1))

    assert num_segments > 8  # the slots of this server
    assert longest["AUDIO_LENGTH"].item() == longest["AUDIO"].shape[1]
    assert longest["AUDIO_LENGTH"].item() == num_audio_samples(1) * num_segments + int(
        outputs["PAUSE_SAMPLES"].sum()
    )

    refusal = server.refused(text + "字")

    assert refusal.status == "INVALID_ARGUMENT"
    assert "TEXT: got 5001 characters, wanted at most 5000" in refusal.text


def test_b_62_line_breaks_do_not_change_how_loud_a_text_is(server: RunningServer):
    def loudness(text: str) -> float:
        speech = server.speak_one(text, SEED=5, MAX_NEW_TOKENS=60)
        assert np.isfinite(speech.samples).all()
        return float(np.sqrt(np.mean(np.square(speech.samples))))

    plain = loudness("今天天气很好。我们去公园。")
    broken = loudness("今天天气很好。\n我们去公园。")

    assert abs(20 * np.log10(plain / broken)) < 1.0


@pytest.fixture
def silent_repository(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Of a checkpoint whose vocoder makes nothing but silence, which random weights never do."""
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    vocos = checkpoint / "asset" / "Vocos.safetensors"
    weights = load_file(vocos)
    weights["head.out.bias"] -= 100.0  # of log magnitudes
    save_file(weights, vocos)
    export(checkpoint, tmp_path / "repository", "fp32")
    return tmp_path / "repository"


def test_trim_reaches_the_decoder_for_its_own_row(silent_repository: Path):
    with running_server(silent_repository) as server:
        rows = server.speak(["你好"] * 3, SEED=4, MAX_NEW_TOKENS=10, TRIM=[False, True, False])
        by_default = server.speak_one("你好", SEED=4, MAX_NEW_TOKENS=10)

    kept_samples = 24_000 * 50 // 1000
    assert [len(row.samples) for row in rows] == [
        num_audio_samples(10),
        kept_samples,
        num_audio_samples(10),
    ]
    assert len(by_default.samples) == num_audio_samples(10)
