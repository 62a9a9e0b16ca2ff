"""`chattts-triton bench`: puts load on a running server and reports what its callers noticed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from chattts_triton import __version__
from chattts_triton.cli.bench_options import add_options, is_gateway, refuse_wrong_use
from chattts_triton.cli.say import check_out, import_client, write_errors
from chattts_triton.errors import InvalidRequestError

if TYPE_CHECKING:
    from chattts_triton.load.capacity import Level
    from chattts_triton.load.plan import LoadPlan
    from chattts_triton.load.take import Speaker

API_KEY_VARIABLE = "CHATTTS_API_KEY"  # a key on the command line would be in the list of processes


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench` to the command line."""
    parser = subparsers.add_parser(
        "bench", help="put load on a running server and measure it", description=__doc__
    )
    add_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 where a request failed, refusals being no failures.

    Raises:
        ChatTTSError: A file cannot be read or written, or there is no such server.
    """
    refuse_wrong_use(args.parser, args)
    import_client()
    plan = _plan(args)
    if args.json is not None:
        check_out(args.json)
    num_failed, report, text = asyncio.run(_measure(args, plan))
    sys.stdout.write(text)
    if args.json is not None:
        with write_errors(args.json):
            args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if num_failed else 0


def _plan(args: argparse.Namespace) -> LoadPlan:
    """The load that was asked for; a value out of its range is wrong use."""
    from chattts_triton.load.plan import LoadPlan
    from chattts_triton.load.texts import TEXTS, read_texts

    parser: argparse.ArgumentParser = args.parser
    texts = TEXTS if args.texts is None else read_texts(args.texts)
    concurrency = args.concurrency
    if concurrency is None and args.rate is None:
        concurrency = 1
    try:
        return LoadPlan(texts, args.requests, concurrency, args.rate, args.warmup, args.seed)
    except InvalidRequestError as error:
        parser.error(str(error))


async def _measure(args: argparse.Namespace, plan: LoadPlan) -> tuple[int, dict[str, Any], str]:
    """How many requests failed, what goes into the file, and what is printed."""
    from chattts_triton.load.capacity import find_capacity
    from chattts_triton.load.report import (
        capacity_as_text,
        plan_as_json,
        summary_as_json,
        summary_as_text,
        takes_as_json,
    )
    from chattts_triton.load.run import run_load
    from chattts_triton.load.summary import summarize

    report = {**_facts(args), **plan_as_json(plan)}
    async with _speaker(args) as speaker:
        if args.find_capacity:
            capacity, levels = await find_capacity(speaker, plan, _tell)
            report["capacity"] = capacity
            report["levels"] = [
                {"concurrency": level.concurrency, **summary_as_json(level.summary)}
                for level in levels
            ]
            num_failed = sum(level.summary.num_failed for level in levels)
            return num_failed, report, capacity_as_text(capacity, levels)
        run = await run_load(speaker, plan)
    summary = summarize(run, is_stream=args.stream)
    report |= summary_as_json(summary)
    report["takes"] = takes_as_json(run, is_stream=args.stream)
    return summary.num_failed, report, summary_as_text(plan, summary)


def _speaker(args: argparse.Namespace) -> AbstractAsyncContextManager[Speaker]:
    from chattts_triton.load.triton_speaker import VoiceOptions, triton_speaker

    options = VoiceOptions(args.voice, args.max_new_tokens)
    how: dict[str, Any] = {
        "is_stream": args.stream or args.find_capacity,
        "mode": args.mode,
        "timeout_s": args.timeout_s,
    }
    if is_gateway(args.url):
        from chattts_triton.load.gateway_speaker import gateway_speaker

        key = os.environ.get(API_KEY_VARIABLE)
        return gateway_speaker(args.url, args.model, options, **how, api_key=key)
    return triton_speaker(args.url, args.model, options, **how)


def _facts(args: argparse.Namespace) -> dict[str, Any]:
    """What was measured, when, and by which version."""
    return {
        "version": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "url": args.url,
        "model": args.model,
        "kind": "stream" if args.stream or args.find_capacity else "call",
        "mode": args.mode,
        "voice": args.voice,
        "max_new_tokens": args.max_new_tokens,
    }


def _tell(level: Level) -> None:
    """One line for each level, since a search takes minutes."""
    outcome = "holds" if level.holds else "does not hold"
    sys.stderr.write(f"{level.concurrency} streams at a time: {outcome}\n")
