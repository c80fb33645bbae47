#!/usr/bin/env bash
# Runs the package's tests with torch, transformers and Triton, which `scripts/setup python` brings, on this tree.
#
#   torch.sh LIBWEFT
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/build/python/bin/python
if ! "$python" -c 'import numpy, pytest, torch, transformers, triton' 2>/dev/null; then
  echo "torch: skipped: build/python has no torch; \`scripts/setup python\` brings it."
  exit 77
fi
cd "$root"
WEFT_LIBRARY=$1 PYTHONPATH=$root/python "$python" -m pytest -q -p no:cacheprovider python/tests
