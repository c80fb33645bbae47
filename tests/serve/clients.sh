#!/usr/bin/env bash
# The server with the official openai client, where `scripts/setup clients` was run; else skipped (77).
#
#   clients.sh WEFT
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/build/clients/bin/python
if [[ ! -x $python ]]; then
  echo "skipped: build/clients is not there (scripts/setup clients makes it)"
  exit 77
fi
exec "$python" -B "$root/tests/serve/test_clients.py" "$1"
