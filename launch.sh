#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
# Runs a test, tutorial or benchmark on every GPU of this machine, or on emulated ranks where there is none.
#   bash launch.sh [--nproc_per_node N] [--nnodes N --node_rank R --master_addr A --master_port P] SCRIPT [ARGS...]
#   bash launch.sh --check SCRIPT [ARGS...]        runs it under the checker: races, deadlocks, wrong scopes
set -euo pipefail
trap 'echo "launch.sh: interrupted" >&2; exit 130' INT
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts/setenv.sh"
exec "$PYTHON" "$TRITON_DIST_ROOT/python/triton_dist/cli/launch.py" "$@"
