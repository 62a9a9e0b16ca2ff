#!/usr/bin/env bash
# Installs the Redis that the tests of shared rate limits start; nothing else needs it.
set -euo pipefail
command -v redis-server >/dev/null && exit 0
apt=(apt-get)
test "$(id -u)" -eq 0 || apt=(sudo apt-get)
"${apt[@]}" install --yes --no-install-recommends redis-server
