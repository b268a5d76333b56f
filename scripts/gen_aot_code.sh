#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
# Compiles the kernels of scripts/aot_kernels.txt ahead of time into a C library, without a GPU (docs/aot.md):
#   bash scripts/gen_aot_code.sh [--target cuda:90,hip:gfx942] [--out DIR] [--jobs N] ...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setenv.sh"
exec "$PYTHON" -m triton_dist aot "@$TRITON_DIST_ROOT/scripts/aot_kernels.txt" "$@"
