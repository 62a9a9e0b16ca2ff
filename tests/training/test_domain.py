from pathlib import Path

import pocketsphinx

from training.domain import GROUPS, HOMOPHONES, LETTERS, WORDS


def sounds_by_word() -> dict[str, set[str]]:
    path = Path(pocketsphinx.get_model_path()) / "en-us" / "cmudict-en-us.dict"
    sounds: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        word, *phones = line.split()
        sounds.setdefault(word.partition("(")[0], set()).add(" ".join(phones))
    return sounds


def test_there_are_enough_words_and_each_is_there_once() -> None:
    assert 250 <= len(WORDS) <= 360
    assert list(WORDS) == sorted(set(WORDS))
    assert {word for words in GROUPS.values() for word in words} == set(WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_no_letter_is_a_word_but_a_and_i() -> None:
    assert set(LETTERS) & set(WORDS) == {"a", "i"}


def test_every_word_is_known_to_the_recogniser() -> None:
    known = sounds_by_word()

    assert [word for word in WORDS if word not in known] == []


def test_words_that_sound_the_same_are_folded() -> None:
    sounds = sounds_by_word()
    weak_forms = {("are", "or")}  # they sound alike only where neither is stressed

    alike = {
        (one, other)
        for index, one in enumerate(WORDS)
        for other in WORDS[index + 1 :]
        if sounds[one] & sounds[other]
    } - weak_forms

    assert [p for p in alike if HOMOPHONES.get(p[0], p[0]) != HOMOPHONES.get(p[1], p[1])] == []


def test_homophones_lead_to_a_word_in_one_step() -> None:
    assert set(HOMOPHONES) <= set(WORDS) | set(LETTERS)
    assert set(HOMOPHONES.values()) <= set(WORDS)
    assert not set(HOMOPHONES) & set(HOMOPHONES.values())
