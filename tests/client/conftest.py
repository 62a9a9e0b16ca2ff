from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_triton import FakeTriton

from chattts_client import ChatTTSClient


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as server:
        yield server


@pytest.fixture
def client(triton: FakeTriton) -> Iterator[ChatTTSClient]:
    with ChatTTSClient(triton.url, timeout_s=20) as connected:
        yield connected
