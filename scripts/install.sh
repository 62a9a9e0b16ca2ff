#!/usr/bin/env bash
# Makes VENV with every extra of the project; names the system package when one is missing.
# Usage: scripts/install.sh PYTHON VENV
set -euo pipefail
python="$1"
venv="$2"

missing() {
  echo "install: $1; on Debian or Ubuntu: apt-get install $2" >&2
  exit 1
}

command -v "$python" >/dev/null || missing "no $python" "python3.11 python3.11-venv"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case "$version" in
  3.11 | 3.12) ;;
  *)
    echo "install: $python is Python $version, wanted 3.11 or 3.12 (make PYTHON=python3.11 ...)" >&2
    exit 1
    ;;
esac
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing "no venv module" "python$version-venv"
"$python" - <<'PYTHON' || missing "no shared libpython, which Triton's stub loads" "libpython$version"
import ctypes
import sys
import sysconfig

name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
for candidate in (f"{sysconfig.get_config_var('LIBDIR')}/{name}", name):
    try:
        ctypes.CDLL(candidate)
        sys.exit(0)
    except OSError:
        pass
sys.exit(1)
PYTHON

test -x "$venv/bin/python" || "$python" -m venv "$venv"
if ! "$venv/bin/python" -m pip install --constraint constraints.txt \
  --editable client --editable ".[serve,export,voices,gateway,client-all,dev]"; then
  # Every package has wheels for x86-64; elsewhere pip may have had to compile one.
  command -v cc >/dev/null || missing "pip failed and there is no C compiler" "gcc"
  "$python" -c 'import pathlib, sysconfig, sys
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())' ||
    missing "pip failed and there are no Python headers" "libpython$version-dev"
  exit 1
fi

# Both packages hold the same module, so one must go before the other comes.
package=$(scripts/onnxruntime_package.sh)
if test "$package" != onnxruntime; then
  "$venv/bin/python" -m pip uninstall --yes onnxruntime onnxruntime-gpu
  "$venv/bin/python" -m pip install --constraint constraints.txt "$package"
fi
