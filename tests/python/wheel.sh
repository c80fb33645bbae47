#!/usr/bin/env bash
# Builds the wheel around libraries that are built already, installs it alone in a fresh virtual environment,
# and runs the package's tests there. Those that need torch skip themselves: see torch.sh.
#
#   wheel.sh LIBWEFT [LIBAMDHIP64]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
if ! "$work/venv/bin/pip" install --quiet --disable-pip-version-check pytest numpy; then
  echo "wheel: skipped: pip cannot install pytest and numpy (its reason is above)."
  exit 77
fi
"$root/scripts/wheel" "$work/out" "$@"
wheel=$(ls "$work"/out/weft-*-py3-none-manylinux_*.whl)
if (($(stat -c %s "$wheel") > 60000000)); then
  echo "wheel: $wheel is larger than 60 MB." >&2
  exit 1
fi
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$wheel"
cd "$work"
env -u PYTHONPATH -u WEFT_LIBRARY "$work/venv/bin/python" -m pytest -q -p no:cacheprovider "$root/python/tests"
! "$work/venv/bin/weft" export-kernel no_such_operation || exit 1
