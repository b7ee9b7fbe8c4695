#!/usr/bin/env bash
# Create the virtual environment, and install the project with one of its extras into it.
#   setup_env.sh VENV [EXTRA]      environment: PYTHON, UV (path of uv, empty: pip), PIP_ARGS
# VENV/.installed-EXTRA is written last, so an interrupted installation is taken up again by the next run.
set -euo pipefail

if [[ "${1:-}" == "--help" || $# -lt 1 || $# -gt 2 ]]; then
  sed -n '2,4s/^# \{0,1\}//p' "$0"
  [[ "${1:-}" == "--help" ]] && exit 0 || exit 2
fi
venv=$1 extra=${2:-} python=${PYTHON:-python3} uv=${UV:-}

fail() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

create_venv() {
  command -v "$python" >/dev/null || fail "$python was not found; install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old: Python 3.11 or newer is needed (make setup PYTHON=/path/to/python3.11)"
  if ! "$venv/bin/python" --version >/dev/null 2>&1; then
    echo "==> creating $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv --without-pip "$venv" || fail "could not create $venv; on Debian and Ubuntu run: apt-get install python3-venv"
  fi
  [[ -n $uv ]] || "$venv/bin/python" -m pip --version >/dev/null 2>&1 || add_pip # uv installs from outside
}

add_pip() {
  "$venv/bin/python" -c 'import ensurepip' 2>/dev/null ||
    fail "$python lacks ensurepip; on Debian and Ubuntu run: apt-get install python3-venv"
  "$venv/bin/python" -m ensurepip >/dev/null || fail "pip could not be put into $venv; its message is above"
}

install() {
  local installer=("$venv/bin/python" -m pip install --disable-pip-version-check --no-compile) # compiled when imported
  [[ -n $uv ]] && installer=("$uv" pip install --python "$venv/bin/python")
  # The filter drops noise and bare index addresses, so that the first URL a reader sees is the platform's own.
  # shellcheck disable=SC2086  # PIP_ARGS is a list of arguments
  "${installer[@]}" ${PIP_ARGS:-} -c constraints.txt -e ".[$extra]" 2>&1 |
    sed -u -e '/^Looking in /d' -e '/^Requirement already satisfied/d' -e '/^ [+] /d' -e 's#[a-z]*://##g'
}

create_venv
[[ -n $extra ]] || exit 0

stamp=$venv/.installed-$extra
rm -f "$stamp"
echo "==> installing into $venv with ${uv:-pip} (the first time this downloads a few hundred MB, torch being the largest part)"
start=$SECONDS
(while sleep 15 >/dev/null 2>&1; do
  echo "    ... still installing, $((SECONDS - start)) s, $(du -sm "$venv" 2>/dev/null | cut -f1) MB in $venv"
done) &
ticker=$!
trap 'kill "$ticker" 2>/dev/null || true' EXIT
install || fail "the project could not be installed; the message is above." \
  "Without a network, name a folder of packages: make setup PIP_ARGS=\"--no-index --find-links DIR\""
touch "$stamp"
[[ $extra != dev ]] || touch "$venv/.installed-local" # dev contains local
echo "==> installed in $((SECONDS - start)) s"
