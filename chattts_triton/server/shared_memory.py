"""What a server leaves behind in /dev/shm, and who may remove it.

Everything that belongs to one server carries one prefix: the shared-memory regions of its Python
stubs, the directory of its backend, and a file `<prefix>owner` which its supervisor keeps locked.
The kernel drops that lock when the supervisor dies in whatever way, so a file that can be locked
tells that its server is left over. A process id alone would not: it is used again, and means
nothing in another container that shares /dev/shm.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from chattts_triton.errors import ServerStartError

SHARED_MEMORY = Path("/dev/shm")
STUB_NAME = "triton_python_backend_stub"
REGION_BYTES = 1 << 20  # Triton's default for each Python model; a region grows with its tensors

_OWNER = "owner"
_OUR_PROGRAMS = ("tritonserver", STUB_NAME)
_KILL_TIMEOUT_S = 5.0
_KILL_POLL_S = 0.01
_LOGGER = logging.getLogger(__name__)


@contextlib.contextmanager
def claimed_prefix(directory: Path = SHARED_MEMORY) -> Iterator[str]:
    """A prefix of our own; when the context ends, all that carries it is removed.

    Raises:
        ServerStartError: The directory cannot be written to.
    """
    try:
        prefix, descriptor = _claim(directory)
    except OSError as error:
        raise ServerStartError(f"{directory}: {error.strerror}; Triton needs it") from error
    try:
        yield prefix
    finally:
        clear_prefix(prefix, directory)
        (directory / f"{prefix}{_OWNER}").unlink(missing_ok=True)
        os.close(descriptor)


def remove_leftovers(directory: Path = SHARED_MEMORY) -> None:
    """End and remove what supervisors that were killed have left; living ones are not touched."""
    for owner in directory.glob(f"chattts_*_{_OWNER}"):
        try:
            descriptor = os.open(owner, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # another user's, or removed by its owner at this moment
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _LOGGER.info("removing what a killed server has left: %s", owner.name)
            clear_prefix(owner.name.removesuffix(_OWNER), directory)
            owner.unlink(missing_ok=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


def clear_prefix(prefix: str, directory: Path = SHARED_MEMORY) -> None:
    """Kill the Triton processes of a prefix and remove its files, all but the owner's own."""
    processes = [process for process in psutil.process_iter() if _belongs(process, prefix)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while alive := [process for process in processes if is_running(process)]:
        if time.monotonic() > deadline:
            _LOGGER.error("processes that cannot be ended: %s", alive)
            break
        time.sleep(_KILL_POLL_S)
    for path in directory.glob(f"{prefix}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != f"{prefix}{_OWNER}":
            path.unlink(missing_ok=True)


def is_running(process: psutil.Process) -> bool:
    """Whether a process still runs; one that nobody has waited for yet does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def check_free_space(num_python_models: int, directory: Path = SHARED_MEMORY) -> None:
    """Refuse a shared memory that cannot even hold the first region of every Python model.

    Raises:
        ServerStartError: Too little is free; the message says how much is needed.
    """
    need = num_python_models * REGION_BYTES
    free = shutil.disk_usage(directory).free
    if free < need:
        raise ServerStartError(
            f"{directory}: {free / 2**20:.1f} MB free, {num_python_models} Python models need "
            f"{need >> 20} MB at the start and more with long audio (docker run --shm-size=1g)"
        )


def _claim(directory: Path) -> tuple[str, int]:
    while True:
        prefix = f"chattts_{os.getpid()}_{secrets.token_hex(4)}_"
        owner = directory / f"{prefix}{_OWNER}"
        descriptor = os.open(owner, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return prefix, descriptor
        os.close(descriptor)  # removed as a left-over in the moment before it was locked


def _belongs(process: psutil.Process, prefix: str) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return (
        bool(command)
        and Path(command[0]).name in _OUR_PROGRAMS
        and any(prefix in argument for argument in command[1:])
    )
