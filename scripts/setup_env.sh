#!/usr/bin/env bash
# Create the virtual environment and install the project with its test dependencies into it.
#   setup_env.sh VENV STAMP        environment: PYTHON, PIP_ARGS
# STAMP is written last, so an interrupted installation is taken up again by the next run.
set -euo pipefail

if [[ "${1:-}" == "--help" || $# -ne 2 ]]; then
  sed -n '2,4s/^# \{0,1\}//p' "$0"
  exit $(($# == 2 ? 0 : 2))
fi
venv=$1 stamp=$2 python=${PYTHON:-python3}

fail() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

command -v "$python" >/dev/null || fail "$python was not found; install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$("$python" --version) is too old: Python 3.11 or newer is needed (make setup PYTHON=/path/to/python3.11)"

rm -f "$stamp"
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  echo "==> creating $venv with $("$python" --version)"
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python lacks venv and ensurepip; on Debian and Ubuntu run: apt-get install python3-venv"
  rm -rf "$venv"
  "$python" -m venv "$venv" || fail "could not create $venv; on Debian and Ubuntu run: apt-get install python3-venv"
fi

echo "==> installing into $venv (the first time this downloads a few hundred MB, torch being the largest part)"
start=$SECONDS
(while sleep 15 >/dev/null 2>&1; do
  echo "    ... still installing, $((SECONDS - start)) s, $(du -sm "$venv" 2>/dev/null | cut -f1) MB in $venv"
done) &
ticker=$!
trap 'kill "$ticker" 2>/dev/null || true' EXIT
# The filter drops noise and bare index addresses, so that the first URL a reader sees is the platform's own.
# shellcheck disable=SC2086  # PIP_ARGS is a list of arguments
"$venv/bin/python" -m pip install --disable-pip-version-check ${PIP_ARGS:-} -c constraints.txt -e ".[dev]" 2>&1 |
  sed -u -e '/^Looking in /d' -e '/^Requirement already satisfied/d' -e 's#[a-z]*://##g' ||
  fail "pip could not install the project; its message is above." \
    "Without a network, point pip at a folder of packages: make setup PIP_ARGS=\"--no-index --find-links DIR\""
touch "$stamp"
echo "==> installed in $((SECONDS - start)) s"
