#!/usr/bin/env bash
# Generate the protobuf and gRPC stubs of protos/ into DIR (replacing DIR/stratos/api).
#   generate_protos.sh DIR        environment: PYTHON
set -euo pipefail

if [[ "${1:-}" == "--help" || $# -ne 1 ]]; then
  sed -n '2,3s/^# \{0,1\}//p' "$0"
  exit $(($# == 1 ? 0 : 2))
fi
out=$(realpath -m "$1")
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
cd "$(dirname "${BASH_SOURCE[0]}")/../protos"

rm -rf "$out/stratos/api"
mkdir -p "$out/stratos/api"
mapfile -t files < <(find stratos -name '*.proto' | sort)
"$python" -m grpc_tools.protoc -I . --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" "${files[@]}"
while read -r folder; do
  printf '"""Generated from protos/%s; never edited."""\n' "${folder#"$out"/}" >"$folder/__init__.py"
done < <(find "$out/stratos/api" -type d -not -name __pycache__)
