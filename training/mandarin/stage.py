"""Stage: the GPT of the first stage learns Mandarin beside its English."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import torch

from training.checkpoint import Tensors
from training.corpus import CorpusSize, write_corpus
from training.dataset import fingerprint, write_dataset
from training.gpt import GptStage
from training.mandarin.corpus import write_shards
from training.mandarin.domain import CHARACTERS
from training.mandarin.teacher import phone_names
from training.modules import Dims, Dvae
from training.tokens import VOCABULARY, Tokens
from training.trainer import Plan, Schedule, train

VOCABULARY_OF_BOTH = dataclasses.replace(VOCABULARY, pieces=(*VOCABULARY.pieces, *CHARACTERS))
# As much English as keeps what was learned; the decoder reads mel spectrograms, no audio.
_ENGLISH = CorpusSize(num_shards=24, num_audio_shards=0, lines_per_shard=250)
_MANDARIN_SHARDS = 40
# Of the first stage's weights in the outcome: it gives back much of the English that was lost, and
# takes hardly any of the Mandarin.
_KEPT_SHARE = 0.07
_TEXT_TABLES = ("embed.emb_text.", "embed.head_text.")


def write_dataset_of_both(dvae: Dvae, work: Path) -> Path:
    """Both corpora in one dataset, the English one first."""
    corpus, dataset = work / "corpus", work / "dataset"
    write_corpus(corpus, _ENGLISH, seed=0)
    write_shards(corpus, _ENGLISH.num_shards, _MANDARIN_SHARDS, seed=0)
    write_dataset(corpus, _ENGLISH.num_shards + _MANDARIN_SHARDS, dvae, dataset)
    return dataset


def train_mandarin(dataset: Path, english: Tensors, schedule: Schedule, work: Path) -> GptStage:
    """Train to the end of the schedule, from what the first stage has learned, and keep of it."""
    plan = Plan("mandarin", schedule, fingerprint(dataset), work, muon_prefix="gpt.")
    stage = train(plan, partial(new_stage, dataset, english, len(phone_names())))
    assert isinstance(stage, GptStage)
    _blend(stage, english, _KEPT_SHARE)
    return stage


def new_stage(dataset: Path, english: Tensors, num_phones: int) -> GptStage:
    """What the first stage has learned; characters and the heads of phones begin anew."""
    stage = GptStage(Dims(), dataset, VOCABULARY_OF_BOTH, num_phones)
    _blend(stage, english, 1.0)
    return stage


@torch.no_grad()
def _blend(stage: GptStage, english: Tensors, share: float) -> None:
    """Move what both stages have towards what the first one has learned, by a share of the way."""
    old_ids = Tokens().all()
    pairs = [(stage.tokens.id_of(token), row) for token, row in old_ids.items()]
    new_rows, old_rows = (torch.tensor(rows) for rows in zip(*pairs, strict=True))
    tensors = stage.state_dict()
    for name, learned in english.items():
        if name.startswith(_TEXT_TABLES):
            tensors[name][new_rows] = tensors[name][new_rows].lerp(learned[old_rows], share)
        else:
            tensors[name].lerp_(learned, share)
