"""The recipe: how much of everything, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from training.checkpoint import write_checkpoint
from training.corpus import CorpusSize, write_corpus
from training.dataset import write_dataset
from training.dvae import train_dvae
from training.gpt import train_gpt
from training.modules import Dims
from training.trainer import Schedule
from training.vocos import train_vocos


@dataclass(frozen=True)
class Recipe:
    """Sizes of the corpus and lengths of the stages."""

    corpus: CorpusSize
    vocos: Schedule
    dvae: Schedule
    gpt: Schedule


FULL = Recipe(
    corpus=CorpusSize(num_shards=72, num_audio_shards=12, lines_per_shard=250),
    vocos=Schedule(steps=3200, learning_rate=1e-3),
    dvae=Schedule(steps=3200, learning_rate=8e-4),
    gpt=Schedule(steps=4200, learning_rate=3e-3),
)
SMOKE = Recipe(
    corpus=CorpusSize(num_shards=2, num_audio_shards=1, lines_per_shard=24),
    vocos=Schedule(steps=40, learning_rate=1e-3, warmup_steps=10),
    dvae=Schedule(steps=40, learning_rate=8e-4, warmup_steps=10),
    gpt=Schedule(steps=12, learning_rate=3e-3, warmup_steps=4),
)


def run(recipe: Recipe, work: Path, out: Path) -> None:
    """Every stage in order; one that is complete in `work` is not run again."""
    corpus, dataset = work / "corpus", work / "dataset"
    write_corpus(corpus, recipe.corpus, seed=0)
    vocos = train_vocos(corpus, recipe.corpus.num_audio_shards, recipe.vocos, work)
    dvae = train_dvae(corpus, recipe.corpus.num_shards, recipe.dvae, work)
    write_dataset(corpus, recipe.corpus.num_shards, dvae, dataset)
    gpt = train_gpt(dataset, recipe.gpt, work)
    write_checkpoint(Dims(), gpt, dvae, vocos, out)
