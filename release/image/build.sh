#!/bin/sh
# What the image's build stage does, and CI without a container engine: make the directory DESTINATION an environment
# that holds the three programs and the plugin, whose page a component serves, and nothing else, and start them from
# there.
#   sh release/image/build.sh DESTINATION       where pyproject.toml and requirements.lock lie
set -eu
umask 022
to=$1
here=$(dirname "$0")
python=${PYTHON:-python}

# What is thrown away.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A part of requirements.lock, from its heading to the next.
part() {
  awk -v head="# -- $1" '/^# -- /{within = ($0 == head)} within' requirements.lock
}
part "the programs" >"$scratch/programs.lock"
part "what builds our wheel" >"$scratch/build.lock"

# pip with a command; what it says only where it fails.
pip() {
  said="$1"
  shift
  if ! "$@" >"$scratch/said" 2>&1; then
    tail -n 40 "$scratch/said" >&2
    echo "$said" >&2
    exit 1
  fi
}

# Without pip, since nothing is installed at run time. It works from outside, from a place that is thrown away.
"$python" -m venv --without-pip "$to"
tools=$python
if grep -q == "$scratch/build.lock" || ! "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m venv "$scratch/tools"
  tools=$scratch/tools/bin/python
fi
flags="--disable-pip-version-check --progress-bar off"
# Wheels only: there is no compiler here, and one that would be needed is noticed. And only those whose hash is known.
unknown="a version in requirements.lock has no wheel for $("$python" --version) with a hash that stands there, or the index did not answer; \`make lock\` writes the file"
pip "$unknown" "$tools" -m pip --python "$to/bin/python" install $flags --root-user-action=ignore --only-binary=:all: \
  --require-hashes --requirement "$scratch/programs.lock"
pip "$unknown" "$tools" -m pip install $flags --root-user-action=ignore --only-binary=:all: --require-hashes --requirement "$scratch/build.lock"
# Ours, by what was just installed, and with nothing more from anywhere.
pip "our wheel cannot be built" "$tools" -m pip wheel $flags --no-build-isolation --no-deps --no-index --wheel-dir "$scratch/wheel" .
pip "requirements.lock lacks a dependency; \`make lock\` writes the file" env PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= \
  "$tools" -m pip --python "$to/bin/python" install $flags --root-user-action=ignore --no-index "$scratch"/wheel/*.whl

"$to/bin/python" -I "$here/check.py" .
