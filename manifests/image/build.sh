#!/bin/sh
# What the image's build stage does, and CI without a container engine: make the directory DESTINATION an environment
# that holds the three programs and nothing else, and start them from there.
#   sh manifests/image/build.sh DESTINATION       where pyproject.toml and constraints.txt lie
set -eu
umask 022
to=$1
here=$(dirname "$0")
python=${PYTHON:-python}

# The versions that were tested, also of what builds our wheel; pip has two words for that, by its age.
export PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt

# What is thrown away.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Without pip, since nothing is installed at run time. It works from outside: this Python's own, or one for the moment.
"$python" -m venv --without-pip "$to"
if ! "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m venv "$scratch/tools"
  python=$scratch/tools/bin/python
fi
# Wheels only: there is no compiler here, and one that would be needed is noticed.
if ! "$python" -m pip --python "$to/bin/python" install --disable-pip-version-check --root-user-action=ignore \
  --progress-bar off --only-binary=:all: . >"$scratch/said" 2>&1; then
  tail -n 40 "$scratch/said" >&2
  echo "a version in constraints.txt has no wheel for $("$python" --version), or the index did not answer" >&2
  exit 1
fi
# The command of a package that is not here.
rm "$to/bin/kubectl-gpufraction"

"$to/bin/python" -I "$here/check.py" .
