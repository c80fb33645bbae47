#!/usr/bin/env bash
# Installs the build in BUILD_DIR somewhere fresh, then builds and runs the project beside this file
# and the examples on it.
#
#   test.sh BUILD_DIR GENERATOR
set -euo pipefail
build_dir=$1
generator=$2
here=$(cd "$(dirname "$0")" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build_dir" --prefix "$work/installed"
# Moved after the installation: the package must not remember where it was put.
mv "$work/installed" "$work/moved"
cmake -G "$generator" -S "$here" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/moved"
cmake --build "$work/build"
cmake -G "$generator" -S "$here/../../examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$work/moved"
cmake --build "$work/examples"
"$work/examples/product" cpu 33 24 40
"$work/examples/product_c" cpu
answers=$("$work/examples/requests" "$here/../../models/weft-code")
echo "$answers"
for stop in length stop; do
  grep -q "stop: $stop" <<< "$answers"
done
"$work/build/consumer" "$here/../../models/weft-code" "def fibonacci(n):"
