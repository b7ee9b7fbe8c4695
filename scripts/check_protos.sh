#!/usr/bin/env bash
# Fail when the committed stubs in libs/stratos/api differ from what protos/ generates.
#   check_protos.sh               environment: PYTHON
set -euo pipefail

if [[ "${1:-}" == "--help" ]]; then
  sed -n '2,3s/^# \{0,1\}//p' "$0"
  exit 0
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
bash scripts/generate_protos.sh "$fresh"
if ! diff -r --exclude=__pycache__ "$fresh/stratos/api" libs/stratos/api; then
  echo "libs/stratos/api does not match protos/: run 'make proto' and commit the result" >&2
  exit 1
fi
