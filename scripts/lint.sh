#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
# ruff (ruff.toml) on all code, and pyright (pyrightconfig.json) on host code. Installs both, in these ranges, into .venv-lint.
set -euo pipefail
CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.."
tools=("ruff>=0.14,<0.18" "pyright>=1.1.400,<1.2")
source scripts/setenv.sh
if [ ! -e .venv-lint/.ready ]; then
    "$PYTHON" -m venv .venv-lint && .venv-lint/bin/python -m pip install --quiet --disable-pip-version-check "${tools[@]}"
    touch .venv-lint/.ready
fi
.venv-lint/bin/ruff check python tests tools tutorials benchmarks docs scripts
.venv-lint/bin/pyright --pythonpath "$("$PYTHON" -c 'import sys; print(sys.executable)')"
