#!/usr/bin/env bash
# Collects in a folder what verify.sh needs to build Tessera on a machine that can download nothing.
#
#   bench/gpu/carry.sh FOLDER
#
# Run it on Debian 12 or Ubuntu 24.04 with its package lists up to date; take FOLDER along. The GPU
# machine itself needs a C++20 compiler, CMake, Ninja, CUDA 13, cuDNN 9 and NCCL 2.
set -euo pipefail

(($# == 1)) || {
  sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
folder=$(mkdir -p "$1" && cd "$1" && pwd)

packages=(
  libdnnl-dev ocl-icd-opencl-dev ocl-icd-libopencl1 opencl-c-headers opencl-clhpp-headers
  libhwy-dev nlohmann-json3-dev libcli11-dev libssl-dev libyaml-cpp-dev
  libgtest-dev libgmock-dev googletest libbenchmark-dev
)
# The libraries behind the -dev packages have their versions in their names.
for package in libdnnl-dev libhwy-dev libyaml-cpp-dev libbenchmark-dev libssl-dev; do
  mapfile -t needed < <(apt-cache depends --important "$package" | sed -n 's/^ *Depends: \(lib[^<>]*\)$/\1/p')
  packages+=("${needed[@]}")
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in $(printf '%s\n' "${packages[@]}" | sort -u); do
  [[ $package == libc6* || $package == libstdc++* || $package == libgcc* ]] && continue
  (cd "$work" && apt-get -q download "$package" >/dev/null 2>&1) || echo "carry: no package $package here" >&2
done
for archive in "$work"/*.deb; do
  dpkg --extract "$archive" "$folder"
done
rm -rf "${folder:?}"/usr/share/{doc,man,lintian} "${folder:?}/etc"
du -sh "$folder"
