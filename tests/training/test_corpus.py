"""The corpus: seeded lines, spoken once, with a phone for every code."""

from __future__ import annotations

from itertools import islice

import numpy as np

from training.corpus import (
    PHONES,
    CorpusSize,
    corpus_fingerprint,
    lines,
    log_mel,
    phones_at_codes,
    shard_path,
    units_at_codes,
    write_corpus,
)
from training.teacher import Speech


def test_a_shards_lines_are_the_same_whenever_they_are_drawn():
    first, again, other = (list(islice(lines(shard, seed=0), 200)) for shard in (3, 3, 4))

    assert first == again
    assert {line.text for line in first} != {line.text for line in other}
    assert {line.voice for line in first} == {"slt", "rms"}
    assert {line.speed for line in first} == set(range(10))


def test_held_out_lines_are_none_of_the_training():
    training = {line.text for line in islice(lines(0, seed=0), 500)}
    held_out = {line.text for line in islice(lines(0, seed=0, held_out=True), 20)}

    assert not training & held_out


def test_every_code_has_the_phone_and_the_unit_of_its_middle():
    phones = [("pau", 0.05), ("k", 0.09), ("ae", 0.128)]
    speech = Speech(np.zeros(512 * 6, np.float32), phones, units=[0, 1, 2])

    heard = [PHONES[number] for number in phones_at_codes(speech)]

    assert heard == ["pau", "pau", "k", "k", "ae", "ae"]  # middles at 11, 32, 53, 75, 96, 117 ms
    assert units_at_codes(speech).tolist() == [0, 0, 1, 1, 2, 2]


def test_a_code_is_two_mel_frames():
    assert log_mel(np.zeros(512 * 7, np.float32)).shape == (14, 100)


def test_shards_are_written_once_and_keep_their_audio_where_asked(tmp_path, monotonous_flite):
    corpus = tmp_path / "corpus"
    size = CorpusSize(num_shards=2, num_audio_shards=1, lines_per_shard=6)
    write_corpus(corpus, size, seed=0)
    written = {path: path.stat().st_mtime_ns for path in corpus.iterdir()}
    write_corpus(corpus, size, seed=0)

    first, second = (np.load(shard_path(corpus, shard)) for shard in (0, 1))
    num_codes = first["num_codes"].sum()
    assert written == {path: path.stat().st_mtime_ns for path in corpus.iterdir()}
    assert len(first["num_codes"]) == len(second["num_codes"]) == 6
    assert first["mel"].shape == (2 * num_codes, 100)
    assert first["phones"].shape == first["units"].shape == (num_codes,)
    assert first["audio"].shape == (512 * num_codes,)
    assert "audio" not in second


def test_a_fingerprint_tells_another_corpus(tmp_path, monotonous_flite):
    size = CorpusSize(num_shards=1, num_audio_shards=0, lines_per_shard=2)
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        write_corpus(tmp_path / name, size, seed)

    one, same, other = (corpus_fingerprint(tmp_path / n, 1) for n in ("one", "same", "other"))

    assert one == same != other
