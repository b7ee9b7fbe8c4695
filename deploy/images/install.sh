#!/bin/sh
# One step of an image's build, run in the folder of the sources:
#   install.sh dependencies EXTRAS     /opt/stratos gets what the project and these extras need
#   install.sh project                 /opt/project becomes what the project itself adds to it
# The environment has no pip. Bytecode is written here: a read-only root could not keep it, and torch alone would compile
# for seconds at every start.
set -eu
target=/opt/stratos
# Build requirements (hatchling) come from the same pins.
export PIP_CONSTRAINT="$PWD/constraints.txt" PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

case $1 in
dependencies)
  [ -d $target ] || python -m venv --without-pip $target
  python requirements.py "$2" >/tmp/requirements.txt
  python -m pip --python $target/bin/python install -r /tmp/requirements.txt
  # Headers, build files and tests of torch: nothing of it is read by a process that only computes.
  rm -rf $target/lib/python3*/site-packages/torch/include $target/lib/python3*/site-packages/torch/share \
    $target/lib/python3*/site-packages/torch/test
  # Classes of each kind of the cluster, 70 MB twice over: the autoscaler calls and watches without them.
  find $target/lib/python3*/site-packages/kubernetes 2>/dev/null \
    \( -path '*/client/models/*v[0-9]*' -o -path '*/client/api/*_api.*' \) -delete || true
  ;;
project)
  python -m pip --python $target/bin/python install --no-deps --prefix /opt/project .
  ;;
*)
  echo "install.sh: unknown step $1" >&2
  exit 2
  ;;
esac
