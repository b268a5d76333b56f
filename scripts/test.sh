#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
# The CPU test suite on all cores, and beside it a small part (tests/newest.txt) under the newest Triton. `--full` adds what takes
# longer than CI should: all combinations of values, all that is compiled (CONTRIBUTING.md, tests/conftest.py).
# Other arguments go to pytest, which then runs once; `--triton VERSION` before them picks the Triton.
set -euo pipefail
export TRITON_DIST_DEV=1
source "$(dirname "${BASH_SOURCE[0]}")/setenv.sh"
export TRITON_DIST_BACKEND=emulator OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export PYTHONDONTWRITEBYTECODE=                     # hundreds of tests start processes, which import the same modules
cd "$TRITON_DIST_ROOT"

newest=3.9.0
select=(-m "not full")
all_cores=(-n auto --dist worksteal)
if [ "${1:-}" = --full ]; then
    select=(-o faulthandler_timeout=3600)               # some take minutes, and the whole half an hour to two hours
    shift
    # Tests of Hugging Face's models are left out where these cannot be had. An environment of yours is left as it is.
    if [ "$PYTHON" = "$TRITON_DIST_ROOT/.venv/bin/python" ] && ! _has "$PYTHON" transformers accelerate peft; then
        _pip "$PYTHON" &&
            "${pip[@]}" install --quiet --disable-pip-version-check -c scripts/constraints.txt transformers accelerate peft ||
            echo "triton_dist: tests of Hugging Face's models are left out" >&2
    fi
fi
if [ "${1:-}" = --triton ]; then
    other_triton "${2:?triton_dist: --triton needs a version}"
    shift 2
elif [ $# = 0 ]; then
    said="$(mktemp)" status=0
    # The smaller part gives way to the larger one, and so lasts nearly as long and takes what that leaves idle.
    ( other_triton "$newest" && exec nice -n 2 "$PYTHON" -m pytest "${select[@]}" @tests/newest.txt ) >"$said" 2>&1 &
    newer=$!
    trap 'kill "$newer" 2>/dev/null || true; rm -f "$said"' EXIT
    echo "== $("$PYTHON" -c 'import triton; print("Triton", triton.__version__)'), the whole suite =="
    "$PYTHON" -m pytest "${select[@]}" "${all_cores[@]}" || status=$?
    wait "$newer" || status=$?
    echo "== Triton $newest =="
    cat "$said"
    exit "$status"
fi
exec "$PYTHON" -m pytest "${select[@]}" "$@"        # testpaths in pytest.ini, unless paths are given
