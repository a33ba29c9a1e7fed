#!/usr/bin/env bash
# Collects in a file, of about 20 MB, what verify.sh needs to build Tessera on a machine that can
# download nothing.
#
#   bench/gpu/carry.sh FILE.tar.gz
#
# Run it on Debian 12 or Ubuntu 24.04 with its package lists up to date, take the file along and name
# it to verify.sh with --deps. The GPU machine itself needs a C++20 compiler, CMake, Ninja, CUDA 13,
# cuDNN 9, NCCL 2 and Python 3.
set -euo pipefail

(($# == 1)) || {
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
file=$(realpath "$1")
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

packages=(
  libdnnl-dev ocl-icd-libopencl1
  libhwy-dev nlohmann-json3-dev libcli11-dev libssl-dev libyaml-cpp-dev
  libgtest-dev libgmock-dev googletest libbenchmark-dev
)
# The libraries behind the -dev packages have their versions in their names.
mapfile -t needed < <(apt-cache depends --important libdnnl-dev libhwy-dev libyaml-cpp-dev \
  libbenchmark-dev libssl-dev | sed -n 's/^ *Depends: \(lib[^<>]*\)$/\1/p')
mapfile -t packages < <(printf '%s\n' "${packages[@]}" "${needed[@]}" | sort -u |
  grep -vE '^(libc6|libstdc\+\+|libgcc)')

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get -q download "${packages[@]}")
for archive in "$work"/*.deb; do
  dpkg --extract "$archive" "$work/tree"
done
cd "$work/tree"
# Debian keeps two of OpenSSL's headers where only its own compilers look.
cp -r usr/include/x86_64-linux-gnu/openssl usr/include/
rm -rf etc usr/src usr/share/{doc,doc-base,man,lintian} usr/lib/*/{libcrypto,libssl,libyaml-cpp}.a
# The tree may come to the GPU machine without its history.
git -C "$repository" describe --always --dirty --abbrev=40 >REVISION
tar -czf "$file" REVISION usr
du -h "$file"
