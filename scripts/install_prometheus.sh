#!/usr/bin/env bash
# Installs Prometheus and promtool, for the tests of deploy/prometheus and deploy/grafana.
set -euo pipefail
command -v prometheus >/dev/null && command -v promtool >/dev/null && exit 0
as_root=()
test "$(id -u)" -eq 0 || as_root=(sudo)
# Debian's package starts a daemon that everybody can reach, now and with the machine. Packages ask
# this file whether they may; one that the machine has already stays in force.
policy=/usr/sbin/policy-rc.d
if ! test -e "$policy"; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" install --mode=755 /dev/stdin "$policy"
  trap '"${as_root[@]}" rm --force "$policy"' EXIT
fi
"${as_root[@]}" apt-get install --yes --no-install-recommends prometheus
"${as_root[@]}" update-rc.d prometheus disable
"${as_root[@]}" service prometheus stop
