#!/usr/bin/env bash
# The command runs after being copied to another Linux machine: it needs glibc and nothing else.
#
#   copyable.sh COMMAND            also started
#   copyable.sh LIBRARY --library
set -euo pipefail
command=$1

dynamic=$(LC_ALL=C readelf --dynamic --wide "$command")
wrong=$(grep -E '\((NEEDED|RPATH|RUNPATH)\)' <<<"$dynamic" |
  grep -vE '\[(libc\.so\.6|libm\.so\.6|ld-linux-x86-64\.so\.2)\]' || true)
if [[ -n $wrong ]]; then
  echo "$command is not made of glibc and itself alone:"
  echo "$wrong"
  exit 1
fi

if [[ ${2-} == --library ]]; then
  exit
fi

# And it starts elsewhere, with no environment.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$command" "$work/copied"
cd / && env -i "$work/copied" --version
