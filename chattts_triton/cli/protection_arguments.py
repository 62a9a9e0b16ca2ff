"""The options of `chattts-triton gateway` that say who may speak, how much, and what."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chattts_triton.gateway.protection.settings import ProtectionSettings

KEYS_VARIABLE = "CHATTTS_GATEWAY_KEYS"
REDIS_VARIABLE = "CHATTTS_GATEWAY_REDIS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("protection")
    group.add_argument(
        "--api-keys",
        type=Path,
        metavar="FILE",
        help="let in only those who have a key of this file, which `chattts-triton keys` makes; "
        f"the variable {KEYS_VARIABLE} may hold the content of such a file",
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="listen on a public --host although everybody is let in",
    )
    group.add_argument(
        "--rate-limit-requests",
        metavar="RATE",
        help="of each key, or of each address without keys, such as 60/minute",
    )
    group.add_argument(
        "--rate-limit-characters", metavar="RATE", help="likewise, such as 20000/hour"
    )
    group.add_argument(
        "--redis",
        metavar="URL",
        help="where several gateways share their rate limits; a URL with a password is better "
        f"given in the variable {REDIS_VARIABLE}",
    )
    group.add_argument(
        "--max-concurrent",
        type=int,
        metavar="N",
        help="requests to speak that run at the same time, of all callers",
    )
    group.add_argument(
        "--max-concurrent-per-key",
        type=int,
        metavar="N",
        help="likewise of each key, or of each address without keys",
    )
    group.add_argument(
        "--content-filter", type=Path, metavar="FILE", help="refuse, mask or count words of texts"
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        metavar="ORIGIN",
        help="web pages of this origin may call, such as https://example.org; may be given "
        "several times, * is every origin",
    )


def protection_settings(
    args: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> ProtectionSettings:
    """What was given on the command line and in the environment.

    Args:
        args: Parsed.
        environment: By default that of the process.

    Raises:
        InvalidRequestError: A value cannot be used, or a public address would be open to all.
    """
    from chattts_triton.gateway.protection.quotas import Quota
    from chattts_triton.gateway.protection.settings import ProtectionSettings

    environment = os.environ if environment is None else environment
    settings = ProtectionSettings(
        api_keys=args.api_keys,
        keys_text=environment.get(KEYS_VARIABLE) or None,
        quota=Quota(
            requests=args.rate_limit_requests,
            characters=args.rate_limit_characters,
            max_concurrent=args.max_concurrent_per_key,
        ),
        max_concurrent=args.max_concurrent,
        redis_url=args.redis or environment.get(REDIS_VARIABLE) or None,
        content_filter=args.content_filter,
    )
    settings.check_address(args.host, is_insecure=args.insecure)
    return settings
