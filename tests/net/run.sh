#!/usr/bin/env bash
# Compares this tree with the state before the redesign. Exit status 1 if they differ by more than the tolerances.
# Usage: [OLD=/tmp/old] tests/net/run.sh [--only rules,steps] [--skip auto]
# The old environment and the old values are made once, in the folder OLD; `python` computes the new values.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${OLD:-/tmp/old}
commit=2ca249d0

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
exec 9>"$folder.lock"
flock 9 # several worktrees may run this at once
case $(cat "$folder/complete" 2>/dev/null || true) in
  "$commit"*) ;;
  *) "$here/old_environment.sh" "$folder" ;;
esac
# Renames, in the first part of compute.py, do not change the old values.
state=$(sed -n '/^# -* what does not change$/,$p' "$here/compute.py" | sha256sum | cut -c1-12)
old="$folder/OLD-$state.npz"
if ! test -f "$old"; then
  echo "Computing the old values:"
  (cd "$folder" && env -u PYTHONPATH -u TORCHMCL_PURE venv/bin/python "$here/compute.py" "$folder/new-$$.npz" \
    --studies "$folder/tree/studies/src")
  mv "$folder/new-$$.npz" "$old"
fi
flock -u 9

new=$(mktemp --suffix .npz)
trap 'rm -f "$new"' EXIT
sources=$(printf '%s:' "$root"/packages/*/src)
PYTHONPATH=$sources${PYTHONPATH:-} python "$here/compute.py" "$new" --studies "$root/studies/src" "$@"
python "$here/compare.py" "$old" "$new" "$@"
