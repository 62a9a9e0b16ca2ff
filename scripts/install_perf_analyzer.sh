#!/usr/bin/env bash
# Brings NVIDIA's perf_analyzer into DIRECTORY/perf_analyzer, or a link to a real one on PATH.
# Usage: scripts/install_perf_analyzer.sh PYTHON DIRECTORY
set -euo pipefail
python="$1"
directory="$2"

works() {
  # It knows no --help, so it prints its options as an error.
  grep --quiet -- --concurrency-range <<<"$("$1" --help 2>&1)"
}

fail() {
  echo "install_perf_analyzer: $1" >&2
  exit 1
}

mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
program="$directory/perf_analyzer"
if works "$program"; then exit 0; fi

# The package of that name on PyPI, version 0.1.0, is a placeholder that profiles nothing.
found=$(command -v perf_analyzer || true)
if test -n "$found" && works "$found"; then
  ln -sfn "$found" "$program"
  exit 0
fi

test "$(uname -sm)" = "Linux x86_64" || fail "the wheel that carries it is for Linux on x86-64"
fetched="$directory/fetched"
rm -rf "$fetched"
mkdir -p "$fetched"

# tritonclient 2.50.0 for manylinux1 is the last wheel with a perf_analyzer for old C libraries.
"$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$fetched" \
  --platform manylinux1_x86_64 tritonclient==2.50.0
"$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$fetched" \
  nvidia-cuda-runtime-cu12==12.9.79
for wheel in "$fetched"/*.whl; do
  "$python" -m zipfile --extract "$wheel" "$fetched"
  rm "$wheel"
done
binary=$(find "$fetched" -path '*/data/bin/perf_analyzer' -print -quit)
test -n "$binary" || fail "tritonclient 2.50.0 has no data/bin/perf_analyzer"
libraries=$(dirname "$(find "$fetched" -name 'libcudart.so.12*' -print -quit)")

if ! ldconfig -p | grep --quiet 'libb64\.so\.0d'; then
  # Unpacked beside the program, so that nothing is installed in the system.
  command -v apt-get >/dev/null || fail "no libb64.so.0d; install your system's libb64"
  (cd "$fetched" && apt-get download --quiet libb64-0d) ||
    fail "apt-get cannot download libb64-0d; run apt-get update first"
  dpkg-deb --extract "$fetched"/libb64-0d_*.deb "$fetched"
  rm "$fetched"/libb64-0d_*.deb
  libraries="$libraries:$(dirname "$(find "$fetched" -name 'libb64.so.0d*' -print -quit)")"
fi

chmod +x "$binary"
cat >"$program" <<WRAPPER
#!/bin/sh
LD_LIBRARY_PATH="$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "$binary" "\$@"
WRAPPER
chmod +x "$program"
works "$program" || fail "$program does not run: $("$program" --help 2>&1 | head -n 1 || true)"
