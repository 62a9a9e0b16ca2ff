"""A gateway as a speaker, by OpenAI's `POST /v1/audio/speech`: one request for each text."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import soundfile

from chattts_triton.errors import ChatTTSError
from chattts_triton.load.answers import failure_of_answer
from chattts_triton.load.take import Arrival, Failure, Speaker, Take
from chattts_triton.load.triton_speaker import VoiceOptions

SPEECH_PATH = "/v1/audio/speech"
READY_PATH = "/readyz"
READY_TIMEOUT_S = 5.0
FINISH_REASON_HEADER = "X-ChatTTS-Finish-Reason"
MODE_HEADER = "X-ChatTTS-Mode"
_SAMPLE_BYTES = 2


class GatewaySpeaker:
    """Speaks by HTTP: raw samples as they come, or a whole WAV file."""

    def __init__(self, client: httpx2.AsyncClient, fields: dict[str, Any]) -> None:
        self._client = client
        self._fields = fields

    async def speak(self, text: str, seed: int) -> Take:
        """One request."""
        loop = asyncio.get_running_loop()
        body = {"input": text, "seed": seed, **self._fields}
        arrivals: list[Arrival] = []
        try:
            async with self._client.stream("POST", SPEECH_PATH, json=body) as response:
                if response.status_code != httpx2.codes.OK:
                    failure = failure_of_answer(response.status_code, await response.aread())
                    return Take((), loop.time(), failure=failure)
                if self._fields["response_format"] == "pcm":
                    await _read_pcm16(response, arrivals)
                else:
                    num_samples = soundfile.info(io.BytesIO(await response.aread())).frames
                    arrivals.append(Arrival(loop.time(), num_samples))
        except httpx2.TimeoutException as error:
            failure = Failure("deadline_exceeded", f"{type(error).__name__}: {error}")
            return Take(tuple(arrivals), loop.time(), failure=failure)
        except httpx2.HTTPError as error:
            failure = Failure("unreachable", f"{type(error).__name__}: {error}")
            return Take(tuple(arrivals), loop.time(), failure=failure)
        except soundfile.LibsndfileError as error:
            return Take((), loop.time(), failure=Failure("generation", f"no WAV file: {error}"))
        ended_s = loop.time()
        if not any(arrival.num_samples for arrival in arrivals):
            return Take((), ended_s, failure=Failure("generation", "the audio has no samples"))
        reason = response.headers.get(FINISH_REASON_HEADER, "")
        return Take(tuple(arrivals), ended_s, reason, response.headers.get(MODE_HEADER, ""))


async def _read_pcm16(response: httpx2.Response, arrivals: list[Arrival]) -> None:
    """Note when the samples of a stream came; a piece may end within one."""
    loop = asyncio.get_running_loop()
    num_bytes = num_samples = 0
    async for piece in response.aiter_raw():
        num_bytes += len(piece)
        arrivals.append(Arrival(loop.time(), num_bytes // _SAMPLE_BYTES - num_samples))
        num_samples = num_bytes // _SAMPLE_BYTES


@asynccontextmanager
async def gateway_speaker(
    url: str,
    model_name: str,
    options: VoiceOptions,
    *,
    is_stream: bool,
    mode: str | None = None,
    timeout_s: float,
    api_key: str | None = None,
) -> AsyncIterator[Speaker]:
    """A speaker for the gateway at `url`, while the context lasts.

    Args:
        url: Begins with http:// or https://.
        model_name: A name that the gateway knows.
        options: Of all requests.
        is_stream: Read the samples as they are made.
        mode: Of a stream; None leaves it to the gateway.
        timeout_s: Longest silence of the gateway within a request.
        api_key: Is sent as the bearer token.

    Raises:
        ChatTTSError: There is no gateway, or it cannot speak now.
    """
    chosen = {"voice": options.voice, "max_new_tokens": options.max_new_tokens, "mode": mode}
    fields = {
        "model": model_name,
        **{name: value for name, value in chosen.items() if value is not None},
        **({"response_format": "pcm", "stream_format": "audio"} if is_stream else {}),
    }
    fields.setdefault("response_format", "wav")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=timeout_s, limits=limits
    ) as client:
        await _check_ready(client, url)
        yield GatewaySpeaker(client, fields)


async def _check_ready(client: httpx2.AsyncClient, url: str) -> None:
    try:
        response = await client.get(READY_PATH, timeout=READY_TIMEOUT_S)
    except httpx2.HTTPError as error:
        raise ChatTTSError(f"{url}: no gateway: {error or type(error).__name__}") from error
    if response.status_code != httpx2.codes.OK:
        raise ChatTTSError(f"{url}{READY_PATH}: got status {response.status_code}, wanted 200")
