# Functions that the other scripts source: print progress, install missing packages, configure and build.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1     # what one clone or build folder has compiled serves another
export CCACHE_SLOPPINESS=pch_defines,time_macros  # which ccache demands where headers are precompiled

say() { printf '== %s\n' "$*" >&2; }

# Debian 12 and Ubuntu 24.04 package names.
packages=(
  build-essential cmake ninja-build ccache pkg-config python3 python3-dev python3-venv
  liburing-dev libaio-dev libtbb-dev libxsimd-dev libjsoncpp-dev libexpected-dev libxxhash-dev libasio-dev
  libcli11-dev libfmt-dev libopenblas-dev libgtest-dev libgmock-dev libbenchmark-dev
  clang-format-14
  libopenmpi-dev openmpi-bin
  xfsprogs btrfs-progs
)

# For the preset aarch64.
packages_aarch64=(
  g++-aarch64-linux-gnu qemu-user-static libtbb-dev:arm64 libgtest-dev:arm64 libjsoncpp-dev:arm64 libxxhash-dev:arm64
  liburing-dev:arm64 libaio-dev:arm64
)

install_dependencies() {
  local missing=() package
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "every dependency is installed"
    return
  fi

  local install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    echo "error: ${#missing[@]} packages are missing and installing them needs root; run" >&2
    echo "  sudo sh -c '$install'" >&2
    exit 1
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# install_python_packages PRESET: those of tests that read and write with another library, into build/PRESET/python. The
# tests are skipped without them.
install_python_packages() {
  local python=build/$1/python/bin/python
  if "$python" -c 'import numpy, safetensors, tensorboard' 2>/dev/null; then
    return
  fi
  say "installing Python's packages safetensors, numpy and tensorboard into build/$1/python"
  python3 -m venv "build/$1/python" >&2 &&
    "$python" -m pip install --quiet --disable-pip-version-check numpy safetensors tensorboard >&2 ||
    say "they cannot be installed: the tests PythonsSafetensors and tensorboard_reader are skipped"
}

# build PRESET [TARGET...]: runs one compiler per core, or two if memory is short.
build() {
  local preset=$1
  shift
  say "building preset $preset"
  cmake --preset "$preset" -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache >&2
  cmake --build --preset "$preset" -j "$(nproc)" ${@:+--target "$@"} >&2
}
