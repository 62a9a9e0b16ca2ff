"""Ten lines of plain tritonclient: grpc_plain.py [HOST:PORT] [FILE.wav]."""

import sys
import wave

import numpy as np
import tritonclient.grpc as triton

url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8001"
path = sys.argv[2] if len(sys.argv) > 2 else "hello.wav"

text = triton.InferInput("TEXT", [1, 1], "BYTES")
text.set_data_from_numpy(np.array([["你好，世界。".encode()]], dtype=np.object_))
seed = triton.InferInput("SEED", [1, 1], "INT64")
seed.set_data_from_numpy(np.array([[42]], dtype=np.int64))
client = triton.InferenceServerClient(url)
result = client.infer("chattts", [text, seed], client_timeout=300)

with wave.open(path, "wb") as file:
    file.setparams((1, 2, 24_000, 0, "NONE", ""))
    file.writeframes(result.as_numpy("PCM16").tobytes())
print(path)
