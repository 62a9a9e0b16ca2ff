from collections import Counter

import pytest

from chattts_triton.text.normalizer import TextNormalizer
from training.domain import LETTERS, WORDS
from training.sentences import SentenceSource, is_held_out, words_of

KINDS = {
    "sentence": lambda source: source.sentence(2, 20),
    "figures": lambda source: source.figures(20),
    "word_string": lambda source: source.word_string(8),
    "spelled": lambda source: source.spelled(),
}


@pytest.fixture(scope="module")
def normalizer() -> TextNormalizer:
    return TextNormalizer({})


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_draws_the_same_texts(kind: str) -> None:
    draw = KINDS[kind]
    first, again, other = (SentenceSource(seed, held_out=False) for seed in (7, 7, 8))

    texts = [draw(first) for _ in range(30)]

    assert texts == [draw(again) for _ in range(30)]
    assert texts != [draw(other) for _ in range(30)]


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_held_out_texts_never_meet(kind: str) -> None:
    draw = KINDS[kind]
    training, held_out = SentenceSource(1, held_out=False), SentenceSource(1, held_out=True)

    trained = {" ".join(words_of(draw(training))) for _ in range(1000)}
    kept = {" ".join(words_of(draw(held_out))) for _ in range(12)}

    assert not trained & kept
    assert all(is_held_out(text) for text in kept)
    assert not any(is_held_out(text) for text in trained)


def test_marks_and_tags_do_not_change_what_is_held_out() -> None:
    texts = [SentenceSource(seed, held_out=True).sentence(4, 12) for seed in range(20)]

    assert all(is_held_out("[uv_break] " + text.replace(",", "").upper().lower()) for text in texts)


def test_a_single_word_or_letter_is_never_held_out() -> None:
    assert not any(is_held_out(word) for word in (*WORDS, *LETTERS))


@pytest.mark.parametrize("kind", ["sentence", "word_string"])
def test_sentences_and_strings_hold_words_only(kind: str) -> None:
    source = SentenceSource(2, held_out=False)

    used = {word for _ in range(3000) for word in words_of(KINDS[kind](source))}

    assert used <= set(WORDS)


def test_figures_hold_words_and_the_letters_of_the_clock_only() -> None:
    source = SentenceSource(3, held_out=False)

    used = {word for _ in range(1500) for word in words_of(source.figures(20))}

    assert used <= set(WORDS) | {"p", "m", "o"}


def test_figures_are_what_the_normaliser_reads(normalizer: TextNormalizer) -> None:
    source = SentenceSource(4, held_out=False)

    for _ in range(300):
        written, text = source.figures_as_written(20)

        assert any(char.isdigit() for char in written)
        assert text == normalizer.normalize(written, "en").text.lower()


@pytest.mark.parametrize("kind", ["sentence", "word_string", "spelled"])
def test_the_normaliser_leaves_a_text_as_it_is(kind: str, normalizer: TextNormalizer) -> None:
    source = SentenceSource(5, held_out=False)

    texts = [KINDS[kind](source) for _ in range(200)]

    assert [normalizer.normalize(text, "en").text for text in texts] == texts


@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 3), (2, 2), (5, 5), (8, 12), (20, 20)])
def test_a_sentence_is_as_long_as_it_was_asked_for(least: int, most: int) -> None:
    source = SentenceSource(6, held_out=False)

    lengths = {len(words_of(source.sentence(least, most))) for _ in range(400)}

    assert lengths == set(range(least, most + 1))


def test_strings_and_figures_keep_to_their_length() -> None:
    source = SentenceSource(6, held_out=False)

    assert {len(words_of(source.word_string(6))) for _ in range(400)} == set(range(1, 7))
    assert max(len(words_of(source.figures(6))) for _ in range(100)) <= 6


def test_a_held_out_source_refuses_single_words() -> None:
    with pytest.raises(ValueError, match="2 or more"):
        SentenceSource(0, held_out=True).word_string(1)


def test_spelled_texts_hold_an_unknown_word_or_a_letter() -> None:
    source = SentenceSource(9, held_out=False)

    texts = [source.spelled() for _ in range(1500)]

    assert all(set(words_of(text)) - set(WORDS) for text in texts if text != "i")
    assert {text for text in texts if len(text) == 1} == set(LETTERS) - {"a"}
    assert all(len(word) <= 7 for text in texts for word in set(words_of(text)) - set(WORDS))


def test_every_word_occurs_in_sentences_and_figures() -> None:
    source = SentenceSource(10, held_out=False)
    heard = Counter[str]()
    for _ in range(8000):
        heard.update(words_of(source.sentence(4, 20)))
    for _ in range(3000):
        heard.update(words_of(source.figures(20)))

    assert {word: heard[word] for word in WORDS if heard[word] < 20} == {}
