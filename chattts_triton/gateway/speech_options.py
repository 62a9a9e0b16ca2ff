"""The bodies of requests, checked, and what they ask of Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from chattts_client import OptionArguments, StreamMode
from chattts_triton.constants import DEFAULT_SPEED, MAX_SPEED, MIN_SPEED
from chattts_triton.gateway.encoding import ResponseFormat
from chattts_triton.gateway.speed import DEFAULT_FACTOR, MAX_FACTOR, MIN_FACTOR, chattts_speed
from chattts_triton.sampling_params import MAX_SEED, RANDOM_SEED, RANGES

Delivery = Literal["file", "audio", "sse"]

_LONGEST_VOICE = 8_192  # a speaker string is about 1,000 characters, a sample string some thousands


def _ranged(name: str, description: str) -> Any:
    low, high = RANGES[name]
    return Field(default=None, ge=low, le=high, description=description)


class _Body(BaseModel):
    """A JSON object without unknown fields, whose values have the type that is said."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    seed: Annotated[
        int | None,
        Field(
            ge=RANDOM_SEED,
            le=MAX_SEED,
            description="The same text, voice, options and seed give the same samples. Left out, "
            "null or -1: a fresh one, told in the header X-ChatTTS-Seed.",
            examples=[42],
        ),
    ] = None


class VoiceOptions(_Body):
    """How a text is spoken: OpenAI's fields, and from `temperature` on those of ChatTTS."""

    model: Annotated[
        str,
        Field(
            max_length=256,
            description="A name of `GET /v1/models`. OpenAI's own names mean the first of them.",
            examples=["chattts"],
        ),
    ] = "tts-1"
    voice: Annotated[
        str | None,
        Field(
            max_length=_LONGEST_VOICE,
            description="A name of `GET /v1/audio/voices`, `seed:N`, or a ChatTTS speaker string. "
            "Left out or null: drawn from the seed.",
            examples=["alder", "seed:2222"],
        ),
    ] = None
    speed: Annotated[
        float,
        Field(
            ge=MIN_FACTOR,
            le=MAX_FACTOR,
            description="1.0 is ChatTTS's speed 5; docs/gateway.md has the table.",
        ),
    ] = DEFAULT_FACTOR
    temperature: float | None = _ranged("TEMPERATURE", "Of the drawing of codes.")
    top_p: float | None = _ranged("TOP_P", "Share of the likeliest codes that are drawn from.")
    top_k: int | None = _ranged("TOP_K", "How many of the likeliest codes are drawn from.")
    repetition_penalty: float | None = _ranged(
        "REPETITION_PENALTY", "Above 1, codes that were just drawn become less likely."
    )
    max_new_tokens: int | None = _ranged(
        "MAX_NEW_TOKENS", "Most steps of 21.33 ms for each segment of the text."
    )
    refine: bool | None = Field(
        default=None, description="Have the model add pauses and laughter to the text first."
    )
    lang: Literal["zh", "en"] | None = Field(
        default=None, description="Of a text without words; left out: told from the text."
    )
    trim: bool | None = Field(
        default=None, description="Cut silence at the beginning and the end down to 50 ms."
    )
    mode: StreamMode | None = Field(
        default=None,
        description="How chunks are cut. Left out: `quality` for a file, else `low_latency`.",
    )

    def arguments(self, triton_voice: str | None) -> OptionArguments:
        """The options as the client of Triton takes them.

        Args:
            triton_voice: The voice under the name that Triton has for it.
        """
        return OptionArguments(
            seed=self.seed,
            voice=triton_voice,
            speed=chattts_speed(self.speed),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            repetition_penalty=self.repetition_penalty,
            max_new_tokens=self.max_new_tokens,
            refine=self.refine,
            lang=self.lang,
            trim=self.trim,
        )


class SpeechRequest(VoiceOptions):
    """`POST /v1/audio/speech`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"input": "你好，世界。", "model": "chattts", "voice": "alder", "seed": 42},
                {"input": "Good morning.", "response_format": "pcm", "stream_format": "audio"},
            ]
        }
    )

    input: Annotated[str, Field(min_length=1, description="The text.", examples=["你好，世界。"])]
    response_format: Annotated[ResponseFormat, Field(description="Of the audio.")] = "mp3"
    stream_format: Annotated[
        Literal["audio", "sse"] | None,
        Field(
            description="`audio` sends bytes as they are made, `sse` events of them. Left out or "
            "null: the whole file at once, but `pcm` as `audio`."
        ),
    ] = None

    @property
    def delivery(self) -> Delivery:
        """How the audio is sent."""
        if self.stream_format is not None:
            return self.stream_format
        # Raw samples have no header that could tell their length, and are asked for to be played.
        return "audio" if self.response_format == "pcm" else "file"

    def speech(self, triton_voice: str | None) -> SpeechOptions:
        """What is asked of Triton.

        Args:
            triton_voice: The voice under the name that Triton has for it.
        """
        return SpeechOptions(
            text=self.input,
            model=self.model,
            response_format=self.response_format,
            delivery=self.delivery,
            mode=self.mode or ("quality" if self.delivery == "file" else "low_latency"),
            options=self.arguments(triton_voice),
        )


class SimpleSpeechRequest(_Body):
    """`POST /api/tts`: a text, and a WAV file for it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "你好，世界。", "speed": 5, "seed": 42}]}
    )

    text: Annotated[str, Field(min_length=1, description="The text.", examples=["你好，世界。"])]
    speed: Annotated[
        int, Field(ge=MIN_SPEED, le=MAX_SPEED, description="0 (slow) to 9 (fast), ChatTTS's own.")
    ] = DEFAULT_SPEED

    def speech(self) -> SpeechOptions:
        """What is asked of Triton."""
        return SpeechOptions(
            text=self.text,
            model="tts-1",
            response_format="wav",
            delivery="file",
            mode="quality",
            options=OptionArguments(seed=self.seed, speed=self.speed),
        )


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """One text to be spoken, whichever way it came in.

    Attributes:
        text: What is spoken.
        model: As the caller named it.
        response_format: Of the audio.
        delivery: A whole file, bytes as they are made, or events.
        mode: Of `chattts_stream`.
        options: Of the client of Triton.
    """

    text: str
    model: str
    response_format: ResponseFormat
    delivery: Delivery
    mode: StreamMode
    options: OptionArguments
