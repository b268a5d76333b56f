#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
# Builds libtdist_rocshmem.so on a machine with ROCm and rocSHMEM: bash build.sh [FOLDER]
#   ROCM_PATH       where ROCm is (/opt/rocm)
#   ROCSHMEM_HOME   where rocSHMEM's include and lib folders are ($ROCM_PATH)
#   ROCSHMEM_LIBS   further libraries that its transports need, such as "-lmpi -lnuma"
set -euo pipefail
here="$(CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${1:-$PWD}"
rocm="${ROCM_PATH:-/opt/rocm}"
home="${ROCSHMEM_HOME:-$rocm}"
hipcc="$rocm/bin/hipcc"
archive="$home/lib/librocshmem.a"
[ -x "$hipcc" ] || { echo "build.sh: no hipcc at $hipcc; set ROCM_PATH" >&2; exit 1; }
[ -f "$archive" ] || { echo "build.sh: no rocSHMEM at $archive; set ROCSHMEM_HOME" >&2; exit 1; }
mkdir -p "$out"
# The archive holds relocatable device code, which is linked here.
# shellcheck disable=SC2086
"$hipcc" -std=c++17 -O2 -fPIC -fvisibility=hidden -fgpu-rdc --hip-link -shared -I"$home/include" "$here/shim.cc" "$archive" \
    -L"$rocm/lib" -lamdhip64 -lhsa-runtime64 ${ROCSHMEM_LIBS:-} -o "$out/libtdist_rocshmem.so"
echo "built $out/libtdist_rocshmem.so; export TRITON_DIST_ROCSHMEM=$out/libtdist_rocshmem.so TRITON_DIST_HEAP=rocshmem"
