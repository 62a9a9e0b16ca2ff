from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_triton import FakeTriton
from gateway_harness import RunningGateway, running_gateway


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton() as server:
        yield server


@pytest.fixture
def gateway(triton: FakeTriton) -> Iterator[RunningGateway]:
    with running_gateway(triton.url) as running:
        yield running
