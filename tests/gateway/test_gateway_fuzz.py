"""Anything that the OpenAPI schema allows, and much that it does not: no fault of the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from fake_triton import FakeTriton
from gateway_harness import RunningGateway, running_gateway
from hypothesis import HealthCheck, Phase, settings
from prometheus_client import CollectorRegistry
from protection_harness import settings as protection_settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from chattts_triton.gateway.app import create_app
from chattts_triton.gateway.protection.protection import Protection
from chattts_triton.gateway.settings import GatewaySettings

NUM_EXAMPLES = 200  # of each operation
FILTER = '[[list]]\nname = "digits"\naction = "mask"\nwords = ["0"]\npatterns = ["[xyz]"]\n'

schema = schemathesis.openapi.from_dict(create_app(GatewaySettings()).openapi())


@pytest.fixture(scope="module")
def protected_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    content_filter: Path = tmp_path_factory.mktemp("filter") / "filter.toml"
    content_filter.write_text(FILTER)
    given = protection_settings(
        requests="1000000/second", characters="100000000/second", content_filter=content_filter
    )
    with (
        FakeTriton() as triton,
        running_gateway(
            triton.url, admission=Protection(given, CollectorRegistry()), max_characters=2000
        ) as gateway,
    ):
        yield gateway


@schema.parametrize()
@settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_no_request_makes_the_gateway_fail(
    case: schemathesis.Case, protected_gateway: RunningGateway
):
    response = case.call(base_url=protected_gateway.url, timeout=20)

    assert response.status_code < 500, case.as_curl_command()
    # A schema cannot say which texts are too long, nor 2**63 - 1 to who reads it as a float.
    case.validate_response(response, excluded_checks=[positive_data_acceptance])
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
