"""Stage: GPT, embeddings and mel decoder together, from text to codes to mel spectrogram.

Four things are learned at once from the same hidden states: the next codes, the phone that is
being said, the one after it, and the mel spectrogram. Some heads of attention are told where in the
text to look, one at what is being said and one at what follows, lest the model lose its place. A
few lines a step teach the other generation, which refines a text: it copies its input.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from chattts_triton.constants import FRAMES_PER_CODE, NUM_VQ
from chattts_triton.export.tokenizer_standin import Vocabulary
from training.corpus import PHONES
from training.dataset import COEF, Dataset, fingerprint
from training.modules import END_CODE, NUM_CODES, Dims, Embed, Gpt, MelDecoder
from training.speakers import drawn_vector
from training.teacher import UNKNOWN_UNIT
from training.tokens import SPEECH_PROMPT_START, VOCABULARY, Tokens
from training.trainer import Plan, Schedule, train

_TOKENS_PER_BATCH = 2000
_COPIES_PER_BATCH = 4
# The shortest quarter of the lines at first, all of them after 15 % of the steps.
_FIRST_SHARE = 0.25
_SHORT_FIRST = 0.15
_MAX_MEL_CROP_CODES = 64
_CODE_NOISE = 0.1
# Of both phones, first and last: once the text is read well, the sound matters more.
_PHONE_WEIGHTS = (1.0, 0.2)
_MEL_WEIGHT = 0.5
_COPY_WEIGHT = 0.1
_PLACE_WEIGHT = 0.15
# Of which layers the first heads are told, and how many codes ahead each of them looks.
_PLACE_LAYERS = (2, 4)
_PLACE_LEADS_CODES = (0, 6)
# The first stage of each quantiser carries the sound, the second its detail.
_BOOK_WEIGHTS = (1.4, 0.6, 1.4, 0.6)
# Of the sound in a word's first embedding, beside a vector of its own of length 1.
_SOUND_SHARE = 2.0
_IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Lines of similar length, padded at the end.

    Attributes:
        prompts: (B, P) int64 text ids, right-aligned, with zeros before them.
        prompt_lengths: (B,) int64.
        speakers: (B, H) vectors of length 1.
        codes: (B, T, 4) int64.
        num_codes: (B,) int64.
        phones: (B, T) int64, `_IGNORED` beyond the end.
        next_phones: (B, T) int64, what will be said when the phone has changed, likewise.
        places: (B, T) int64, the place in the prompt of what is being said, likewise.
        crop_starts: (B,) int64; from there `mel` shows `crop` codes.
        mel: (B, 100, 2 crop) float32.
        phone_weight: () float32, of the loss of phones.
        copies: (C, L) int64 text ids of the refinement.
        copied: (C, L) int64: the id that follows each, `_IGNORED` in the prompt.
    """

    prompts: Tensor
    prompt_lengths: Tensor
    speakers: Tensor
    codes: Tensor
    num_codes: Tensor
    phones: Tensor
    next_phones: Tensor
    places: Tensor
    crop_starts: Tensor
    mel: Tensor
    phone_weight: Tensor
    copies: Tensor
    copied: Tensor


class GptStage(nn.Module):
    """Cross-entropy of codes and phones, L1 of the mel spectrogram, cross-entropy of copies."""

    def __init__(
        self,
        dims: Dims,
        dataset: Path,
        vocabulary: Vocabulary = VOCABULARY,
        num_phones: int = len(PHONES),
    ) -> None:
        super().__init__()
        self.tokens = Tokens(vocabulary)
        self._dataset = Dataset.open(dataset)
        self._hidden_size = dims.hidden_size
        self.gpt = Gpt(dims)
        self.embed = Embed(dims, self.tokens.count)
        self.decoder = MelDecoder(dims)
        self.decoder.coef.copy_(torch.from_numpy(np.load(dataset / COEF)))
        self.phone_head = nn.Linear(dims.hidden_size, num_phones)
        self.next_phone_head = nn.Linear(dims.hidden_size, num_phones)
        self._prompts = [
            self.tokens.speech_prompt(line.text, line.speed) for line in self._dataset.lines
        ]
        self._lengths = self._dataset.num_codes + [len(prompt) for prompt in self._prompts]
        self._begin_words_at_their_sounds()

    @torch.no_grad()
    def _begin_words_at_their_sounds(self) -> None:
        """Words that share a phone in the same place begin with embeddings that are alike there.

        So what is learned of one word about a phone holds for all others from the beginning.
        """
        table = self.embed.emb_text.weight
        sounds = _sounds(self._dataset, self._prompts)
        longest = max(len(sound) for sound in sounds.values())
        vectors = torch.randn(longest, self.phone_head.out_features, self._hidden_size)
        for token, sound in sounds.items():
            sum_of_phones = vectors[torch.arange(len(sound)), torch.tensor(sound)].sum(0)
            mixed = _SOUND_SHARE * functional.normalize(sum_of_phones, dim=0) + table[token]
            table[token] = functional.normalize(mixed, dim=0)

    def batch(self, generator: torch.Generator, progress: float) -> Batch:
        """Lines of similar length, about 2,000 steps in all, every line as likely as any.

        Only short lines come at first: where in the text one is, is learned from them.
        """
        rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
        jittered = self._lengths * rng.uniform(0.9, 1.1, len(self._lengths))
        share = min(1.0, _FIRST_SHARE + progress * (1 - _FIRST_SHARE) / _SHORT_FIRST)
        order = np.argsort(jittered)[: round(share * len(jittered))]
        steps = np.cumsum(self._lengths[order])
        position = np.searchsorted(steps, rng.uniform(0, steps[-1]))
        picked: list[int] = []
        longest = 0
        for line in order[: position + 1][::-1]:
            longest = max(longest, int(self._lengths[line]))
            if picked and longest * (len(picked) + 1) > _TOKENS_PER_BATCH:
                break
            picked.append(int(line))
        first, last = _PHONE_WEIGHTS
        phone_weight = first + progress * (last - first)
        return self._collated(picked, phone_weight, rng, generator)

    def _collated(
        self,
        picked: list[int],
        phone_weight: float,
        rng: np.random.Generator,
        generator: torch.Generator,
    ) -> Batch:
        data = self._dataset
        num_codes = data.num_codes[picked]
        crop = min(_MAX_MEL_CROP_CODES, int(num_codes.min()))
        width = max(len(self._prompts[line]) for line in picked)
        prompts = np.zeros((len(picked), width), dtype=np.int64)
        codes = np.zeros((len(picked), num_codes.max(), NUM_VQ), dtype=np.int64)
        phones = np.full(codes.shape[:2], _IGNORED, dtype=np.int64)
        next_phones, places = phones.copy(), phones.copy()
        crop_starts = rng.integers(0, num_codes - crop + 1)
        mel = []
        for row, line in enumerate(picked):
            prompt, start = self._prompts[line], int(data.starts[line])
            end = start + int(num_codes[row])
            prompts[row, width - len(prompt) :] = prompt
            codes[row, : num_codes[row]] = data.codes[start:end]
            phones[row, : num_codes[row]] = data.phones[start:end]
            next_phones[row, : num_codes[row]] = _following(data.phones[start:end])
            units = data.units[start:end]
            places[row, : num_codes[row]] = np.where(
                units == UNKNOWN_UNIT, _IGNORED, units + SPEECH_PROMPT_START
            )
            first = FRAMES_PER_CODE * (start + int(crop_starts[row]))
            mel.append(data.mel[first : first + FRAMES_PER_CODE * crop].T)
        voices = [data.lines[line].voice for line in picked]
        copies, copied = self._copies(rng)
        return Batch(
            prompts=torch.from_numpy(prompts),
            prompt_lengths=torch.tensor([len(self._prompts[line]) for line in picked]),
            speakers=torch.stack([drawn_vector(v, self._hidden_size, generator) for v in voices]),
            codes=torch.from_numpy(codes),
            num_codes=torch.from_numpy(num_codes),
            phones=torch.from_numpy(phones),
            next_phones=torch.from_numpy(next_phones),
            places=torch.from_numpy(places),
            crop_starts=torch.from_numpy(crop_starts),
            mel=torch.from_numpy(np.stack(mel).astype(np.float32)),
            phone_weight=torch.tensor(phone_weight),
            copies=copies,
            copied=copied,
        )

    def _copies(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        rows, targets = [], []
        for line in rng.integers(len(self._dataset.lines), size=_COPIES_PER_BATCH):
            text = self._dataset.lines[line].text
            tags = "".join(
                f"[{name}_{rng.integers(count)}]"
                for name, count in (("oral", 10), ("laugh", 3), ("break", 8))
                if rng.random() < 0.5
            )
            prompt = self.tokens.refinement_prompt(text, tags)
            out = [*self.tokens.ids(text), self.tokens.text_end]
            rows.append(torch.tensor([*prompt, *out[:-1]]))
            targets.append(torch.tensor([_IGNORED] * (len(prompt) - 1) + out))
        return (
            nn.utils.rnn.pad_sequence(rows, batch_first=True),
            nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=_IGNORED),
        )

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Loss over one batch."""
        device = self.gpt.norm.weight.device
        batch = Batch(**{name: value.to(device) for name, value in vars(batch).items()})
        with torch.autocast(device.type, torch.bfloat16):
            hiddens, wanted, place_loss = self._hiddens(batch)
            code_loss = _code_loss(self.embed.code_logits(hiddens), wanted)
            phone_loss, next_phone_loss = (
                functional.cross_entropy(
                    head(hiddens[:, :-1]).float().flatten(0, 1),
                    phones.flatten(),
                    ignore_index=_IGNORED,
                )
                for head, phones in (
                    (self.phone_head, batch.phones),
                    (self.next_phone_head, batch.next_phones),
                )
            )
            mel_loss = self._mel_loss(hiddens, batch)
            copy_loss = functional.cross_entropy(
                self.embed.head_text(self.gpt(self.embed.emb_text(batch.copies)))
                .float()
                .flatten(0, 1),
                batch.copied.flatten(),
                ignore_index=_IGNORED,
            )
        books = code_loss.detach().tolist()
        loss = (
            (code_loss * code_loss.new_tensor(_BOOK_WEIGHTS)).mean()
            + batch.phone_weight * (phone_loss + next_phone_loss)
            + _MEL_WEIGHT * mel_loss
            + _COPY_WEIGHT * copy_loss
            + _PLACE_WEIGHT * place_loss
        )
        return loss, {
            "code": sum(books) / NUM_VQ,
            "phone": phone_loss.item(),
            "next_phone": next_phone_loss.item(),
            "mel": mel_loss.item(),
            "copy": copy_loss.item(),
            "place": place_loss.item(),
        }

    def _hiddens(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """States that predict each code and the end, what they should, and the loss of places.

        Prompts of one batch differ in length; each line is moved so that its codes follow its
        prompt, and what is before and behind is padding that nothing looks at.

        Returns:
            (B, T + 1, H) states, (B, T + 1, 4) codes, and a scalar.
        """
        width = batch.prompts.shape[1]
        text = self.embed.emb_text(batch.prompts)
        is_speaker = (batch.prompts == self.tokens.speaker)[..., None]
        text = torch.where(is_speaker, batch.speakers[:, None].to(text.dtype), text)
        noisy = torch.where(
            torch.rand(batch.codes.shape, device=text.device) < _CODE_NOISE,
            torch.randint(NUM_CODES, batch.codes.shape, device=text.device),
            batch.codes,
        )
        x = torch.cat([text, self.embed.code_embedding(noisy)], dim=1)
        padding = width - batch.prompt_lengths
        places = torch.arange(x.shape[1], device=x.device) + padding[:, None]
        x = x.gather(1, places.clamp(max=x.shape[1] - 1)[..., None].expand_as(x))
        first = batch.prompt_lengths[:, None] - 1
        num_steps = batch.codes.shape[1] + 1
        steps = first + torch.arange(num_steps, device=x.device)
        states, seen = self.gpt.with_attention(x, _PLACE_LAYERS)
        place_loss = torch.stack([_place_loss(q, k, steps, batch.places) for q, k in seen]).mean()
        hiddens = states.gather(1, steps[..., None].expand(-1, -1, states.shape[-1]))
        wanted = functional.pad(batch.codes, (0, 0, 0, 1))
        number = torch.arange(num_steps, device=x.device)[None, :, None]
        ends = batch.num_codes[:, None, None]
        wanted = wanted.masked_fill(number == ends, END_CODE).masked_fill(number > ends, _IGNORED)
        return hiddens, wanted, place_loss

    def _mel_loss(self, hiddens: Tensor, batch: Batch) -> Tensor:
        crop = batch.mel.shape[-1] // FRAMES_PER_CODE
        steps = batch.crop_starts[:, None] + torch.arange(crop, device=hiddens.device)
        shown = hiddens.gather(1, steps[..., None].expand(-1, -1, hiddens.shape[-1]))
        error = (self.decoder(shown).float() - batch.mel) / self.decoder.coef
        return error.abs().mean()


def _sounds(dataset: Dataset, prompts: list[list[int]]) -> dict[int, tuple[int, ...]]:
    """How each token sounds most often, as places in PHONES."""
    heard: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for line, prompt in enumerate(prompts):
        span = slice(dataset.starts[line], dataset.starts[line] + dataset.num_codes[line])
        spoken = groupby(
            zip(dataset.units[span].tolist(), dataset.phones[span].tolist(), strict=True)
        )
        for unit, run in groupby((key for key, _ in spoken), key=itemgetter(0)):
            if unit != UNKNOWN_UNIT:
                heard[prompt[unit + SPEECH_PROMPT_START]][tuple(phone for _, phone in run)] += 1
    return {token: counts.most_common(1)[0][0] for token, counts in heard.items()}


def _following(phones: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """The phone that each one changes into, the last one into itself: (T,) to (T,)."""
    changes = np.flatnonzero(np.diff(phones))
    following = np.append(phones[changes + 1], phones[-1])
    return following[np.searchsorted(changes, np.arange(len(phones)))]


def _place_loss(q: Tensor, k: Tensor, steps: Tensor, places: Tensor) -> Tensor:
    """How far the first heads' attention is from the places in the prompt that it should be at.

    Args:
        q: (B, heads, S, head size), the queries of a layer.
        k: Its keys, likewise.
        steps: (B, T + 1), the steps that predict each code and the end.
        places: (B, T), where each code is to be looked for.
    """
    losses = []
    number = torch.arange(k.shape[2], device=k.device)
    for head, lead in enumerate(_PLACE_LEADS_CODES):
        asking = steps[:, : places.shape[1] - lead]
        queries = q[:, head].gather(1, asking[..., None].expand(-1, -1, q.shape[-1]))
        scores = (queries @ k[:, head].transpose(1, 2)).float() / q.shape[-1] ** 0.5
        scores = scores.masked_fill(number > asking[..., None], -torch.inf)
        losses.append(
            functional.cross_entropy(
                scores.flatten(0, 1), places[:, lead:].flatten(), ignore_index=_IGNORED
            )
        )
    return torch.stack(losses).mean()


def _code_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy of each codebook: (4,)."""
    losses = functional.cross_entropy(
        logits.float().flatten(0, -2), wanted.flatten(), ignore_index=_IGNORED, reduction="none"
    ).view(-1, NUM_VQ)
    return losses.sum(0) / (wanted[..., 0] != _IGNORED).sum()


def train_gpt(dataset: Path, schedule: Schedule, directory: Path) -> GptStage:
    """Train to the end of the schedule."""
    plan = Plan("gpt", schedule, fingerprint(dataset), directory, muon_prefix="gpt.")
    stage = train(plan, partial(GptStage, Dims(), dataset))
    assert isinstance(stage, GptStage)
    return stage
