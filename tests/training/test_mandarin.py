"""The second stage: Chinese lines, their teacher, their judge, and how the GPT takes them in."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from training.checkpoint import read_gpt, write_checkpoint
from training.corpus import Line, log_mel, save_shard, shard_path
from training.dataset import write_dataset
from training.gpt import GptStage
from training.mandarin.domain import CHARACTERS, MandarinSource, all_syllables, syllables
from training.mandarin.espeak import EspeakError, Library, Phone, phones_of
from training.mandarin.stage import new_stage
from training.mandarin.teacher import speak
from training.mandarin.templates import features, nearest
from training.modules import Dims, Dvae, Vocos
from training.teacher import TeacherError
from training.tokens import Tokens

FLITE_RATE_HZ = 16_000
NAMES = ("pau", "t", "a4")


def tone(hz: float, seconds: float, rate_hz: int = 24_000) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)).astype(
        np.float32
    )


def say_tones(spoken: list[str], voice: str, stretch: float):
    """Each syllable as two phones of 0.1 s."""
    phones = [
        Phone(name, i, 0.1 * (2 * i + half), 0.1 * (2 * i + half + 1))
        for i in range(len(spoken))
        for half, name in enumerate(NAMES[1:])
    ]
    return tone(300, 0.2 * len(spoken), FLITE_RATE_HZ), phones


def test_there_are_enough_characters_and_each_has_a_syllable() -> None:
    assert len(CHARACTERS) == len(set(CHARACTERS)) >= 200
    assert set(syllables("".join(CHARACTERS))) <= set(all_syllables())


def test_training_and_held_out_texts_never_meet_and_hold_known_characters_only() -> None:
    training, held_out = (MandarinSource(1, held_out) for held_out in (False, True))
    draws = [
        {text for _ in range(100) for text in (source.sentence(), source.characters(8))}
        for source in (training, held_out)
    ]

    spoken = [{text.rstrip("。") for text in texts} for texts in draws]

    assert not spoken[0] & spoken[1]
    assert set("".join(spoken[0] | spoken[1])) <= {*CHARACTERS, "，"}


def test_marks_become_pauses_and_every_phone_belongs_to_its_character() -> None:
    speech = speak("你好，人。", "slt", 5, seed=0, say=say_tones)

    names = [name for name, _ in speech.phones]
    assert names == ["pau", "t", "a4", "t", "a4", "pau", "t", "a4", "pau"]
    assert speech.units == [0, 0, 0, 1, 1, 2, 3, 3, 5]
    assert speech.phones[5][1] - speech.phones[4][1] == pytest.approx(0.14, abs=1e-3)
    assert len(speech.audio) % 512 == 0


def test_a_character_outside_the_domain_is_refused_by_name() -> None:
    with pytest.raises(TeacherError, match="text: got the character '龘'"):
        speak("你龘", "slt", 5, seed=0, say=say_tones)


def test_phones_take_the_tone_of_their_syllable_and_pauses_are_left_out() -> None:
    word, phone = 1, 7
    events = [(word, 0.0, ""), (phone, 0.0, "t"), (phone, 0.1, "A"), (phone, 0.2, "_|")]
    events += [(word, 0.2, ""), (phone, 0.25, "i"), (phone, 0.4, "_:")]

    phones = phones_of(events, ["ta4", "yi1"])

    assert phones == [
        Phone("t", 0, 0.0, 0.1),
        Phone("A4", 0, 0.1, 0.2),
        Phone("i1", 1, 0.25, 0.4),
    ]


def test_a_missing_library_is_named_with_its_package() -> None:
    with pytest.raises(EspeakError, match="Debian's package `espeak-ng`"):
        Library("libespeak-that-is-not-there.so")


def test_the_nearest_template_is_found_at_another_pace() -> None:
    def glide(start_hz: float, end_hz: float, seconds: float) -> np.ndarray:
        steps = np.linspace(start_hz, end_hz, 8)
        return np.concatenate([tone(hz, seconds / 8) for hz in steps])

    templates = {
        "rising": features(glide(300, 1500, 0.4)),
        "falling": features(glide(1500, 300, 0.4)),
        "level": features(tone(800, 0.4)),
    }

    heard = [
        nearest(sound, templates)
        for sound in (glide(320, 1450, 0.6), glide(1450, 320, 0.3), tone(820, 0.5))
    ]

    assert heard == ["rising", "falling", "level"]


def test_the_second_stage_keeps_what_the_first_has_learned(tmp_path) -> None:
    speech = speak("你好", "slt", 5, seed=0, say=say_tones)
    torch.manual_seed(0)
    for number, text in enumerate(("hello hi", "你好")):
        line = Line(text, "slt", 5)
        save_shard(shard_path(tmp_path, number), [(line, speech)], NAMES, keeps_audio=False)
    make_dataset = partial(write_dataset, tmp_path, dvae=Dvae(Dims()).eval())
    make_dataset(num_shards=1, directory=tmp_path / "english")
    make_dataset(num_shards=2, directory=tmp_path / "both")
    first = GptStage(Dims(), tmp_path / "english")
    write_checkpoint(Dims(), first, Dvae(Dims()), Vocos(Dims()), tmp_path)

    second = new_stage(tmp_path / "both", read_gpt(tmp_path), num_phones=99)

    old, new = Tokens(), second.tokens
    for token in ("hello", "[Stts]", "[speed_3]", "b"):
        for table in ("emb_text.weight", "head_text.parametrizations.weight.original1"):
            learned = first.embed.state_dict()[table][old.id_of(token)]
            kept = second.embed.state_dict()[table][new.id_of(token)]
            assert torch.equal(kept, learned.half().float())
    assert torch.equal(second.gpt.norm.weight, first.gpt.norm.weight)
    assert torch.equal(second.decoder.coef, first.decoder.coef)
    assert new.count == old.count + len(CHARACTERS)
    assert len(log_mel(speech.audio)) == 2 * len(speech.audio) // 512
