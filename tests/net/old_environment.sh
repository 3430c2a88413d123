#!/usr/bin/env bash
# Makes the state before the redesign usable: its files, wheels of its four packages, and an environment with them.
# Usage: tests/net/old_environment.sh [FOLDER] [PACKAGE ...]
#   FOLDER   gets tree/, wheels/ and venv/; /tmp/old by default
#   PACKAGE  is installed too: `transformers peft` for some of the old reproducing scripts
# The interpreter is that of PYTHON, python3 by default; where packages come from is read from the configuration of pip.
set -euo pipefail

commit=2ca249d0
folder=${1:-/tmp/old}
shift || true
python=$(command -v "${PYTHON:-python3}")
root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
names="torchmcl torchmcl-tables torchmcl-forecast torchmcl-speech"
extras="numpy scipy scikit-learn tqdm safetensors torchmetrics onnx onnxscript onnxruntime polars pyarrow pandas
  matplotlib soundfile soxr PyYAML lightning"

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
rm -rf "$folder/tree" "$folder/wheels" "$folder/venv" "$folder/complete"
mkdir "$folder/tree"
git -C "$root" archive "$commit" | tar -x -C "$folder/tree"

# The values of an option of pip, from its files and its environment variables.
pip_option() {
  "$python" -m pip config list 2>/dev/null | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | tr ' ' '\n' | sort -u
}

unset TORCHMCL_PURE PYTHONPATH
pins="$folder/tree/constraints.txt"
wheels="$folder/wheels"
uv=$(command -v uv || { test -x "$(dirname "$python")/uv" && echo "$(dirname "$python")/uv"; } || true)
if test -n "$uv"; then
  options=(--quiet --index-strategy unsafe-best-match)
  for index in $(pip_option index-url); do options+=(--default-index "$index"); done
  for index in $(pip_option extra-index-url); do options+=(--extra-index-url "$index"); done
  for place in $(pip_option find-links); do options+=(--find-links "$place"); done
  for cert in $(pip_option cert); do export SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}; done
  "$uv" venv --quiet --python "$python" "$folder/venv"
  for name in $names; do
    "$uv" build "${options[@]}" --python "$python" --wheel --out-dir "$wheels" "$folder/tree/packages/$name"
  done
  install=("$uv" pip install "${options[@]}" --python "$folder/venv/bin/python")
else
  "$python" -m venv "$folder/venv"
  for name in $names; do
    "$python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "$folder/tree/packages/$name"
  done
  install=("$folder/venv/bin/python" -m pip install --quiet)
fi
# shellcheck disable=SC2086
"${install[@]}" --constraint "$pins" torch==2.13.0 "$wheels"/*.whl $extras "$@"

cd "$folder"
venv/bin/python - <<'CHECK'
import torch
import torchmcl, torchmcl_forecast, torchmcl_speech, torchmcl_tables
from torchmcl.accel.native import compiled

assert "/venv/" in torchmcl.__file__, torchmcl.__file__
assert compiled.available(), "the loops in C were not built: is there a compiler?"
print("torchmcl", torchmcl.__version__, "with torch", torch.__version__, "and loops in C, in", torchmcl.__file__)
CHECK
git -C "$root" rev-parse "$commit" >complete
