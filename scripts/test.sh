#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
# The CPU test suite. `--full` adds what takes longer than CI should. Other arguments go to pytest.
set -euo pipefail
export TRITON_DIST_DEV=1
source "$(dirname "${BASH_SOURCE[0]}")/setenv.sh"
export TRITON_DIST_BACKEND=emulator OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
select=(-m "not full")
if [ "${1:-}" = --full ]; then
    select=()
    shift
fi
cd "$TRITON_DIST_ROOT"
exec "$PYTHON" -m pytest "${select[@]}" "$@"        # testpaths in pytest.ini, unless paths are given
