#!/usr/bin/env bash
# HTTP with curl and Python's standard library: http_curl.sh [HOST:PORT] [DIRECTORY]
# Writes infer.wav (the standard protocol) and generate.wav (Triton's short form).
set -euo pipefail

url="http://${1:-127.0.0.1:8000}/v2/models/chattts"
directory="${2:-.}"
# Reads JSON, finds PCM16 in either form, writes it as a WAV file.
json_to_wav='
import array, json, sys, wave
answer = json.load(sys.stdin)
outputs = {output["name"]: output["data"] for output in answer.get("outputs", [])}
samples = array.array("h", outputs.get("PCM16") or answer["PCM16"])
if sys.byteorder == "big":
    samples.byteswap()
with wave.open(sys.argv[1], "wb") as file:
    file.setparams((1, 2, 24000, 0, "NONE", ""))
    file.writeframes(samples.tobytes())
print(sys.argv[1])
'

call() { # call PATH JSON FILE
  local answer
  answer=$(curl --silent --show-error --fail-with-body --max-time 300 \
    --header "Content-Type: application/json" --data "$2" "$url/$1") || {
    printf '%s\n' "$answer" >&2
    exit 1
  }
  python3 -c "$json_to_wav" "$3" <<<"$answer"
}

call infer '{
  "inputs": [
    {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["你好，世界。"]},
    {"name": "SEED", "datatype": "INT64", "shape": [1, 1], "data": [42]}
  ],
  "outputs": [{"name": "PCM16"}]
}' "$directory/infer.wav"

call generate '{"TEXT": "你好，世界。", "SEED": 42}' "$directory/generate.wav"
