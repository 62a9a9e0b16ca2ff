"""Downloads the ChatTTS weights from the Hugging Face hub, each file held against its SHA-256.

Knows the hub and its cache; what the files hold is the business of `checkpoint`.
"""

from __future__ import annotations

import fcntl
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import (
    HfFileMetadata,
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    FileMetadataError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
from huggingface_hub.utils import logging as hub_logging
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from chattts_triton.errors import ModelLoadError
from chattts_triton.manifest import sha256_of

REPO_ID = "2Noise/ChatTTS"
HOW_TO_GO_ON = (
    "set HF_ENDPOINT to a mirror that you can reach, or CHATTTS_CHECKPOINT to a directory that "
    "holds asset/..., or use the stand-in (chattts-triton standin --size full --out DIR)"
)
_SMALL_FILE = "asset/gpt/config.json"
_BLOCKED = (403, 407, 451)  # a filter on the way answers so; the hub does not, for a public model
# UnicodeError: a host name that cannot be one.
_UNREACHABLE = (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError, OSError)


def fetch(
    out: Path | None = None,
    timeout_s: float | None = None,
    expected_sha256: Mapping[str, str] | None = None,
) -> Path:
    """Make sure that the weights are on this machine, downloading what is missing.

    What is there already is verified and not downloaded again, so a complete checkpoint needs no
    network. A download that broke off goes on where it stopped, also in a later run. A file with
    a wrong hash is removed, so that the next run downloads it again.

    Args:
        out: Directory that then holds asset/...; None is the hub's own cache.
        timeout_s: How long the hub may take to answer for one file before its bytes come; None is
            HF_HUB_ETAG_TIMEOUT. A silence within a download is bounded by HF_HUB_DOWNLOAD_TIMEOUT.
        expected_sha256: Files to fetch and their hashes; None is the list of the ChatTTS package.

    Returns:
        The directory that holds asset/..., absolute.

    Raises:
        ModelLoadError: The hub cannot be reached, refuses, or sends wrong or incomplete files, or
            the disk cannot be written. The message says what to do.
    """
    expected = _expected(expected_sha256)
    # The library warns of each retry on a handler of its own; what fails for good is our error.
    hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    with _errors_in_one_line():
        if out is not None:
            _fetch_to_directory(out, expected, timeout_s)
            return out.resolve()
        return _fetch_to_cache(expected, timeout_s)


def cached_checkpoint(expected_sha256: Mapping[str, str] | None = None) -> Path | None:
    """A complete snapshot in the hub's cache, or None; no network.

    Small files are hashed. Of the large ones the name of the blob, which is its hash, and the
    size that the file itself states are checked; `fetch` hashes them too.

    Args:
        expected_sha256: As for `fetch`.
    """
    expected = _expected(expected_sha256)
    cached = _cached_files(expected)
    if len(cached) < len(expected):
        return None
    if not all(_is_plausible(path, expected[name]) for name, path in cached.items()):
        return None
    return _snapshot_of(cached)


def unreachable_reason(timeout_s: float) -> str | None:
    """Why the hub does not answer a small request within `timeout_s`; None where it answers."""
    try:
        _ask_hub(_SMALL_FILE, timeout_s)
    except HfHubHTTPError as error:
        status = error.response.status_code
        return f"HTTP {status}" if status in _BLOCKED or status >= 500 else None
    except OfflineModeIsEnabled:
        return "offline mode, HF_HUB_OFFLINE, is on"
    except _UNREACHABLE as error:
        return _words(error)
    return None


def _expected(expected_sha256: Mapping[str, str] | None) -> Mapping[str, str]:
    if expected_sha256 is not None:
        return expected_sha256
    # Here, since `upstream` imports torch, which takes seconds.
    from chattts_triton.export.upstream import checkpoint_sha256

    return checkpoint_sha256()


def _fetch_to_directory(out: Path, expected: Mapping[str, str], timeout_s: float | None) -> None:
    right = _right_files({name: out / name for name in expected}, expected)
    for name, wanted in expected.items():
        if name in right:
            continue
        target = out / name
        cached = _cached_file(name)
        if cached is not None and sha256_of(cached) == wanted:
            _copy(cached, target)
        else:
            _download(name, _ask_hub(name, timeout_s), target, wanted)


def _fetch_to_cache(expected: Mapping[str, str], timeout_s: float | None) -> Path:
    cached = _cached_files(expected)
    right = _right_files(cached, expected)
    for name in cached.keys() - right:
        _remove_from_cache(cached[name])
    if len(right) == len(expected):
        return _snapshot_of(cached)
    repository = repo_folder_name(repo_id=REPO_ID, repo_type="model")
    blobs = Path(constants.HF_HUB_CACHE) / repository / "blobs"
    # A snapshot is of one commit, so all files are looked up, also those that are there already.
    for name, wanted in expected.items():
        metadata = _ask_hub(name, timeout_s)
        blob = blobs / str(metadata.etag)
        if not (blob.is_file() and sha256_of(blob) == wanted):
            _download(name, metadata, blob, wanted)
        # The blob is there, so this only adds the snapshot's link and the branch's commit.
        cached[name] = Path(hf_hub_download(REPO_ID, name))
        if not cached[name].samefile(blob):  # a cache without symbolic links holds copies
            _check_or_remove(cached[name], name, wanted)
    return _snapshot_of(cached)


def _right_files(paths: Mapping[str, Path], expected: Mapping[str, str]) -> set[str]:
    with tqdm(
        paths.items(), desc="Verifying", unit="file", delay=1, leave=False, disable=None
    ) as bar:
        return {name for name, path in bar if path.is_file() and sha256_of(path) == expected[name]}


def _download(name: str, metadata: HfFileMetadata, target: Path, wanted: str) -> None:
    """Fetch one file by way of `<target>.incomplete`, which outlives a download that breaks off.

    `hf_hub_download` keeps no partial file after a failure (huggingface_hub#4228), so only its
    inner function is used, which resumes with a Range request.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target)
    try:
        with partial.open("ab") as file:
            _lock(file, name)
            _download_rest(name, metadata, file)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(partial)  # a full disk is reported by a write, which has no name
        raise
    _check_or_remove(partial, name, wanted)
    partial.replace(target)


def _download_rest(name: str, metadata: HfFileMetadata, file: BinaryIO) -> None:
    num_bytes = file.tell()
    if metadata.size is None or num_bytes > metadata.size:
        num_bytes = file.seek(file.truncate(0))
    try:
        http_get(
            metadata.location,
            file,
            resume_size=num_bytes,
            headers=_download_headers(name, metadata.location),
            expected_size=metadata.size,
            displayed_filename=name,
        )
    except (httpx2.TransportError, OSError) as error:
        # http_get reports a wrong size as an OSError without a number.
        is_cut = isinstance(error, httpx2.TransportError) or error.errno is None
        if not is_cut or isinstance(error, HfHubHTTPError):
            raise
        raise ModelLoadError(
            f"{name}: the download broke off, {file.tell()} of {metadata.size} bytes are kept "
            f"({_words(error)}); run the command again to go on from there"
        ) from error


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target)
    shutil.copyfile(source, partial)
    partial.replace(target)


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.incomplete")


def _lock(file: BinaryIO, name: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ModelLoadError(
            f"{name}: another process is downloading it to the same place; wait until it has ended"
        ) from None


def _download_headers(name: str, location: str) -> dict[str, str]:
    # Unpacked bytes: a Range into a compressed body could not be resumed.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if urlsplit(location).netloc != urlsplit(hf_hub_url(REPO_ID, name)).netloc:
        headers.pop("authorization", None)  # the token is for the hub, not for its storage
    return headers


def _check_or_remove(path: Path, name: str, wanted: str) -> None:
    got = sha256_of(path)
    if got != wanted:
        path.unlink()
        raise ModelLoadError(
            f"{name}: SHA-256 is {got}, wanted {wanted}; the file was removed, "
            "run the command again to download it again"
        )


def _remove_from_cache(path: Path) -> None:
    """Remove a file of a snapshot and, where it is a link, the blob that it names."""
    if path.is_symlink():
        (path.parent / path.readlink()).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _cached_file(name: str) -> Path | None:
    found = try_to_load_from_cache(REPO_ID, name)
    return Path(found) if isinstance(found, str) else None


def _cached_files(names: Iterable[str]) -> dict[str, Path]:
    return {name: path for name in names if (path := _cached_file(name)) is not None}


def _snapshot_of(cached: Mapping[str, Path]) -> Path:
    name, path = next(iter(cached.items()))
    return path.absolute().parents[len(PurePosixPath(name).parts) - 1]


def _is_plausible(path: Path, wanted: str) -> bool:
    if path.suffix != ".safetensors":
        return sha256_of(path) == wanted
    if path.is_symlink() and path.readlink().name != wanted:
        return False
    try:
        with safe_open(path, framework="numpy"):  # reads the header, compares the file's size
            return True
    except (OSError, SafetensorError):
        return False


def _ask_hub(name: str, timeout_s: float | None) -> HfFileMetadata:
    limit_s = constants.HF_HUB_ETAG_TIMEOUT if timeout_s is None else timeout_s
    url = hf_hub_url(REPO_ID, name)
    metadata = _answer_within(limit_s, lambda: get_hf_file_metadata(url, timeout=limit_s))
    etag = metadata.etag
    if metadata.commit_hash is None or etag is None or etag != Path(etag).name:
        raise FileMetadataError("what answers there is no Hugging Face hub")
    return metadata


def _answer_within(limit_s: float, ask: Callable[[], HfFileMetadata]) -> HfFileMetadata:
    """Bound `ask` by the clock on the wall, which a time-out per socket call does not.

    Name resolution has no time-out of its own, and a hub that sends a byte now and then resets
    that of the socket. The thread is a daemon, so that it does not hold up the end of the process.
    """
    answer: Future[HfFileMetadata] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except _UNREACHABLE as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="ask-hub", daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except OfflineModeIsEnabled:
        raise ModelLoadError(
            f"{REPO_ID} is not complete in the cache {constants.HF_HUB_CACHE}, and offline mode is "
            f"on; unset HF_HUB_OFFLINE, or {HOW_TO_GO_ON}"
        ) from None
    except HfHubHTTPError as error:
        response = error.response
        raise ModelLoadError(
            f"{response.url}: HTTP {response.status_code} {response.reason_phrase}; {HOW_TO_GO_ON}"
        ) from error
    except OSError as error:
        if error.errno is None:  # no answer in time, or the library's own errors
            raise _unreachable(error) from error
        raise ModelLoadError(f"the checkpoint cannot be read or written: {error}") from error
    except _UNREACHABLE as error:
        raise _unreachable(error) from error


def _unreachable(error: Exception) -> ModelLoadError:
    return ModelLoadError(
        f"the Hugging Face hub {constants.ENDPOINT} cannot be reached ({_words(error)}); "
        f"{HOW_TO_GO_ON}"
    )


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
