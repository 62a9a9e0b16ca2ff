"""A long text in one call against its segments one after another, full weights, real server.

The segments are spoken with the seeds and the voice that the one call gives them, so that both
sides generate the very same steps. Random weights end their sequences at random, so each round has
a seed of its own, and no segment runs longer than 400 steps.
Usage: python benchmarks/long_text.py [--rounds N] [--precision int8|fp32]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from datetime import UTC, datetime

import numpy as np
import tritonclient.grpc as grpcclient
from machine import describe_machine
from prepared import RESULTS, prepare
from tqdm import tqdm

from chattts_client import ChatTTSClient
from chattts_triton.server.background_server import serve_in_background
from chattts_triton.serving.preprocess import segment_seed

SENTENCES = (
    "今天早上天气很好，我和朋友一起去公园散步，看见许多老人在打太极拳。",
    "公园里的花都开了，红的黄的白的，一片一片，非常好看。",
    "我们坐在湖边的长椅上，一边喝茶，一边聊最近的工作和生活。",
    "朋友说她打算明年去南方旅行，看看大海，尝尝当地的美食。",
    "我说我更喜欢北方的秋天，天空很高，空气很干净，树叶变成金色。",
    "后来下起了小雨，我们就跑进旁边的书店，挑了几本小说。",
    "书店里放着轻轻的音乐，让人觉得时间过得很慢。",
    "傍晚的时候雨停了，我们在路口道别，各自回家做饭。",
    "晚上我给妈妈打了电话，告诉她今天过得很开心。",
    "她让我早点休息，注意身体，不要总是工作到很晚。",
    "我答应了她，然后关上灯，听着窗外的风声慢慢睡着了。",
    "第二天醒来，阳光照进房间，新的一天又开始了。",
)
FIRST_SEED = 42
VOICE = "seed:42"
MAX_NEW_CODES = 400  # 8.5 s for segments of about 45 characters


def split(url: str, text: str) -> list[str]:
    """The segments as `preprocess` makes them."""
    tensor = grpcclient.InferInput("TEXT", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=np.object_))
    with grpcclient.InferenceServerClient(url) as client:
        segments = client.infer("preprocess", [tensor]).as_numpy("SEGMENT_TEXT")[0]
    return [segment.decode() for segment in segments]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=("fp32", "int8"), default="int8")
    args = parser.parse_args()
    rounds, precision = args.rounds, args.precision
    repository = prepare(precision).repository
    text = "".join(SENTENCES)
    together, apart, audio_s = [], [], []
    with serve_in_background(repository) as server, ChatTTSClient(server.grpc) as client:
        segments = split(server.grpc, text)
        seeds = range(FIRST_SEED, FIRST_SEED + rounds)
        for seed in tqdm(seeds, desc="rounds", file=sys.stderr):
            began_s = time.perf_counter()
            whole = client.synthesize(text, seed=seed, voice=VOICE, max_new_tokens=MAX_NEW_CODES)
            audio_s.append(whole.duration_s)
            together.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            for index, segment in enumerate(segments):
                client.synthesize(
                    segment,
                    seed=segment_seed(seed, index),
                    voice=VOICE,
                    max_new_tokens=MAX_NEW_CODES,
                )
            apart.append(time.perf_counter() - began_s)
    result = {
        "command": f"python benchmarks/long_text.py --rounds {rounds} --precision {precision}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "precision": precision,
        "characters": len(text),
        "segments": len(segments),
        "audio_s": round(statistics.median(audio_s), 2),
        "one_call_s": round(statistics.median(together), 2),
        "one_after_another_s": round(statistics.median(apart), 2),
        "ratio": statistics.median([a / b for a, b in zip(together, apart, strict=True)]),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"long_text_{precision}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(
        f"`{result['command']}`, {result['date']}, {result['machine']}\n\n"
        "| characters | segments | audio s | one call s | one after another s | ratio |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        f"| {result['characters']} | {result['segments']} | {result['audio_s']} "
        f"| {result['one_call_s']} | {result['one_after_another_s']} | {result['ratio']:.2f} |"
    )


if __name__ == "__main__":
    main()
