#!/usr/bin/env bash
# Installs the speech synthesisers that the demonstration voice learns from; only training needs them.
set -euo pipefail
command -v flite >/dev/null && command -v espeak-ng >/dev/null && exit 0
apt=(apt-get)
test "$(id -u)" -eq 0 || apt=(sudo apt-get)
"${apt[@]}" install --yes --no-install-recommends flite espeak-ng
