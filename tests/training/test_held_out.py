from training.domain import WORDS
from training.held_out import unknown_words
from training.sentences import is_held_out


def test_unknown_words_are_single_words_that_no_training_has_seen():
    words = unknown_words(seed=1, count=30)

    assert len(set(words)) == 30
    assert all(word.isalpha() and is_held_out(word) for word in words)
    assert not set(words) & set(WORDS)


def test_the_same_seed_gives_the_same_unknown_words():
    assert unknown_words(seed=1, count=10) == unknown_words(seed=1, count=10)
    assert unknown_words(seed=1, count=10) != unknown_words(seed=2, count=10)
