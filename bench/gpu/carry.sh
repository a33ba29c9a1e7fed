#!/usr/bin/env bash
# Collects in one file, under 60 MB, what verify.sh needs on a machine that can download nothing.
#
#   bench/gpu/carry.sh FILE.tar.gz [--build DIR] [--llm.c DIR] [--programs-only] [--fast]
#
# The programs: those that verify.sh runs, built here for Hopper and stripped, and the libraries that they
# need and that machine has not. It runs them if they are of its sources; else it builds them, with the
# packages that go along, and a C++20 compiler, CMake, Ninja and nvcc of its own. In either case it has
# CUDA 13, cuDNN 9 and NCCL 2, installed by apt or by pip, the C and C++ libraries of Ubuntu 24.04 or
# later, and Python 3.
#
#   --build          take programs that are built in DIR as they are, and build none
#   --llm.c          take its sources along, to be compared with; a folder cudnn-frontend in it goes along
#   --programs-only  without packages: no package lists are needed
#   --fast           compress faster; the file is larger by an eighth
#
# Run it on Debian 12, or Ubuntu 24.04, with its package lists up to date. Take the file along with the
# sources, and name it to verify.sh with --deps.
set -euo pipefail

usage() {
  sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}
fail() {
  echo "carry.sh: $*" >&2
  exit 1
}
file='' build='' llm_c='' packages=1 level=6
while (($#)); do
  case $1 in
    --build | --llm.c)
      folder=$(realpath -e "${2-}") || usage
      if [[ $1 == --build ]]; then build=$folder; else llm_c=$folder; fi
      shift
      ;;
    --programs-only) packages=0 ;;
    --fast) level=1 ;;
    -*) usage ;;
    *)
      [[ -z $file ]] || usage
      file=$(realpath "$1")
      ;;
  esac
  shift
done
[[ -n $file ]] || usage
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly file llm_c packages level repository
readonly max_bytes=60000000 # with the sources, less than the 64 MiB that machines are given
# Of Ubuntu 24.04's minimal system, and of CUDA and its libraries.
readonly there='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|libcudart|libcublas|libcublasLt|libcudnn|libnccl|libnvrtc)\.so'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/prebuilt/bin" "$work/tree/prebuilt/lib/carried"
cd "$work/tree"

pack_programs() {
  local program library path
  if [[ -z $build ]]; then
    build=${TESSERA_BUILD_DIR:-$repository/build-gpu}
    TESSERA_BUILD_DIR=$build "$repository/bench/gpu/steps.sh" build
  fi
  for program in tessera step_kernels test_kernels_gpu test_cuda_gpu test_collectives_gpu gpu_kernels_bench \
    nccl_check; do
    [[ -x $build/bin/$program ]] || fail "there is no $build/bin/$program"
    strip --strip-all -o "prebuilt/bin/$program" "$build/bin/$program"
  done
  [[ -f $build/lib/libtessera_cuda.so ]] || fail "there is no $build/lib/libtessera_cuda.so"
  strip --strip-unneeded -o prebuilt/lib/libtessera_cuda.so "$build/lib/libtessera_cuda.so"
  while read -r library _ path _; do
    [[ $library =~ $there || $library == /* ]] && continue
    [[ -f $path ]] || fail "$library, which programs need, is not found"
    [[ -e prebuilt/lib/carried/$library ]] || strip --strip-unneeded -o "prebuilt/lib/carried/$library" "$path"
  done < <(ldd "$build"/bin/{tessera,step_kernels,test_{kernels,cuda,collectives}_gpu,gpu_kernels_bench,nccl_check} \
    "$build/lib/libtessera_cuda.so" | sed -n 's/^[[:space:]]\+//p')
  python3 "$repository/bench/gpu/sources.py" >prebuilt/SOURCES
}

pack_packages() {
  local names needed archive
  names=(
    libdnnl-dev ocl-icd-libopencl1
    libhwy-dev nlohmann-json3-dev libcli11-dev libssl-dev libxxhash-dev libyaml-cpp-dev libpcre2-dev libutf8proc-dev
    libhwloc-dev liburing-dev libgtest-dev libgmock-dev googletest libbenchmark-dev
  )
  # The libraries behind the -dev packages have their versions in their names.
  mapfile -t needed < <(apt-cache depends --important libdnnl-dev libhwy-dev libyaml-cpp-dev \
    libbenchmark-dev libssl-dev libpcre2-dev libutf8proc-dev libhwloc-dev liburing-dev |
    sed -n 's/^ *Depends: \(lib[^<>]*\)$/\1/p')
  mapfile -t names < <(printf '%s\n' "${names[@]}" "${needed[@]}" | sort -u |
    grep -vE '^(libc6|libstdc\+\+|libgcc)')
  mkdir "$work/archives"
  (cd "$work/archives" && apt-get -q download "${names[@]}")
  for archive in "$work"/archives/*.deb; do
    dpkg --extract "$archive" "$work/packages"
  done
  mv "$work/packages/usr" .
  # Debian keeps two of OpenSSL's headers where only its own compilers look.
  cp -r usr/include/x86_64-linux-gnu/openssl usr/include/
  rm -rf usr/src usr/share/{doc,doc-base,man,lintian} usr/lib/*/{libcrypto,libssl,libyaml-cpp}.a
}

# Of a library that is in a package, too, one is enough.
link_to_packages() {
  local library packaged
  for library in prebuilt/lib/carried/*; do
    packaged=usr/lib/x86_64-linux-gnu/${library##*/}
    [[ ! -e $packaged ]] || ln -sf "../../../$packaged" "$library"
  done
}

pack_programs
((!packages)) || { pack_packages && link_to_packages; }
if [[ -n $llm_c ]]; then
  tar -c --exclude=.git -C "$llm_c" . | tar -x --one-top-level=llm.c
fi
# The tree may come to the GPU machine without its history.
git -C "$repository" describe --always --dirty --abbrev=40 >REVISION
tar -c -- * | gzip -$level >"$file"
bytes=$(stat -c %s "$file")
((bytes <= max_bytes)) || fail "$file has $bytes bytes, which is more than $max_bytes"
du -h "$file"
