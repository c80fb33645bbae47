#!/usr/bin/env bash
# A test of the server that needs packages of PyPI, where `scripts/setup PART` was run; else skipped (77).
#
#   with_packages.sh PART TEST.py WEFT
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/build/$1/bin/python
if [[ ! -x $python ]]; then
  echo "skipped: build/$1 is not there (scripts/setup $1 makes it)"
  exit 77
fi
exec "$python" -B "$root/tests/serve/$2" "$3"
