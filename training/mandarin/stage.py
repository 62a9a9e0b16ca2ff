"""Stage: the GPT of the first stage learns Mandarin beside its English."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from training.corpus import shard_path
from training.dataset import fingerprint, write_dataset
from training.gpt import GptStage
from training.mandarin.corpus import write_shards
from training.mandarin.domain import CHARACTERS
from training.mandarin.teacher import phone_names
from training.modules import Dims, Dvae
from training.tokens import VOCABULARY, Tokens
from training.trainer import Plan, Schedule, train

VOCABULARY_OF_BOTH = dataclasses.replace(VOCABULARY, pieces=(*VOCABULARY.pieces, *CHARACTERS))
_ENGLISH_SHARDS = 24  # as many as keep what was learned
_MANDARIN_SHARDS = 40
_TEXT_TABLES = ("embed.emb_text.", "embed.head_text.")


def write_dataset_of_both(corpus: Path, dvae: Dvae, work: Path) -> Path:
    """Both corpora in one dataset; the English shards are those of the first stage."""
    both, dataset = work / "corpus-of-both", work / "dataset-of-both"
    both.mkdir(parents=True, exist_ok=True)
    for shard in range(_ENGLISH_SHARDS):
        link = shard_path(both, shard)
        link.unlink(missing_ok=True)
        link.symlink_to(shard_path(corpus, shard).resolve())
    write_shards(both, _ENGLISH_SHARDS, _MANDARIN_SHARDS, seed=0)
    write_dataset(both, _ENGLISH_SHARDS + _MANDARIN_SHARDS, dvae, dataset)
    return dataset


def train_mandarin(dataset: Path, english: Path, schedule: Schedule, work: Path) -> GptStage:
    """Train to the end of the schedule, from the state of the first stage."""
    plan = Plan("mandarin", schedule, fingerprint(dataset), work, muon_prefix="gpt.")
    stage = train(plan, partial(new_stage, dataset, english, len(phone_names())))
    assert isinstance(stage, GptStage)
    return stage


def new_stage(dataset: Path, english: Path, num_phones: int) -> GptStage:
    """The first stage's parameters; characters and their phones begin as the stage begins them."""
    stage = GptStage(Dims(), dataset, VOCABULARY_OF_BOTH, num_phones)
    learned = torch.load(english, weights_only=True)["stage"]
    old_ids = Tokens().all()
    pairs = [(stage.tokens.id_of(token), row) for token, row in old_ids.items()]
    new_rows, old_rows = (torch.tensor(rows) for rows in zip(*pairs, strict=True))
    with torch.no_grad():
        for name, tensor in stage.state_dict().items():
            if name.startswith(_TEXT_TABLES):
                tensor[new_rows] = learned[name][old_rows]
            else:
                _first_rows(tensor, len(learned[name]) if tensor.dim() else 0).copy_(learned[name])
    return stage


def _first_rows(tensor: Tensor, count: int) -> Tensor:
    return tensor[:count] if tensor.dim() else tensor
