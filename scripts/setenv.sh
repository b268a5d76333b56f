# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
# Source this: sets PYTHON and PYTHONPATH for working in a checkout.
# Takes the current python3 if it has what this command needs; otherwise .venv, which it makes and fills on first use.
# TRITON_DIST_PYTHON names an interpreter to use as it is. TRITON_DIST_DEV=1 also installs what the tests need.

TRITON_DIST_ROOT="$(CDPATH='' cd -- "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export TRITON_DIST_ROOT
export PYTHONPATH="$TRITON_DIST_ROOT/python${PYTHONPATH:+:$PYTHONPATH}"

_has() {  # _has PYTHON MODULE...: true if every module can be found, without importing it
    "$1" - "${@:2}" 2>/dev/null <<'PY'
import importlib.util, sys
sys.path[:] = filter(None, sys.path)        # a folder here may have the name of a module
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
PY
}

_has_gpu() { [ -e /dev/nvidiactl ] || [ -e /dev/kfd ]; }

_is_new() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

_suits() {  # the interpreter has all that this command needs
    local wanted=(torch triton numpy filelock)
    _has_gpu || wanted+=(greenlet)
    [ -z "${TRITON_DIST_DEV:-}" ] || wanted+=(pytest xdist hypothesis matplotlib rich sphinx myst_parser furo sphinx_design sphinx_copybutton sphinx_gallery)
    _is_new "$1" && _has "$1" "${wanted[@]}"
}

_python3() {
    local name
    for name in python3 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null && _is_new "$name"; then
            echo "$name"
            return
        fi
    done
    echo "triton_dist: needs python3 3.11 or newer; found $( (command -v python3 >/dev/null && python3 --version) || echo none)" >&2
    return 1
}

_pip() {  # _pip PYTHON: sets `pip` to a command that installs for it, with its own pip or that of a python3
    local base
    pip=("$1" -m pip)
    _has "$1" pip && return
    base="$(_python3)"
    pip=("$base" -m pip --python "$1")
    _has "$base" pip && return
    echo "triton_dist: neither $1 nor $base has pip; install it (on Debian: apt install python3-pip python3-venv)" >&2
    return 1
}

other_triton() {  # other_triton VERSION: puts that Triton before the environment's own; fetched on first use
    local folder="$TRITON_DIST_ROOT/.venv-triton-$1" pip
    if [ ! -e "$folder/.ready" ]; then
        (
            flock 9
            [ -e "$folder/.ready" ] && exit
            echo "triton_dist: fetching Triton $1 (once)" >&2
            rm -rf "$folder"
            _pip "$PYTHON" && "${pip[@]}" install --quiet --disable-pip-version-check --no-deps --target "$folder" "triton==$1" &&
                touch "$folder/.ready"
        ) 9>"$TRITON_DIST_ROOT/.venv.lock" || {
            echo "triton_dist: cannot install Triton $1, which is tested beside the environment's own. With no network," \
                 "name paths: bash scripts/test.sh tests" >&2
            return 1
        }
    fi
    export PYTHONPATH="$folder:$PYTHONPATH"
}

_command() {  # puts `triton-dist` of this checkout beside the interpreter of .venv
    local command="$TRITON_DIST_ROOT/.venv/bin/triton-dist"
    [ -x "$command" ] || [ ! -w "${command%/*}" ] && return
    # Two lines for sh, a string for Python: the kernel takes no interpreter whose path has a space, or is long.
    printf '%s\n' '#!/bin/sh' "'''exec' \"\$(dirname \"\$(readlink -f \"\$0\")\")/python\" \"\$0\" \"\$@\"" "' '''" "import os, sys" \
        'python = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "python")' \
        'sys.path[0] = python = os.path.realpath(python)' \
        'os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [python, os.environ.get("PYTHONPATH")]))' \
        "from triton_dist.cli.main import main" "main()" >"$command.$$" &&
        chmod 755 "$command.$$" && mv "$command.$$" "$command"
}

_make_venv() {
    local venv="$TRITON_DIST_ROOT/.venv" base want pins marker
    want="torch numpy greenlet filelock${TRITON_DIST_DEV:+ pytest pytest-xdist hypothesis matplotlib rich sphinx myst-parser furo sphinx-design sphinx-copybutton sphinx-gallery}"
    pins="$TRITON_DIST_ROOT/scripts/constraints.txt"
    marker="$venv/.ready-$( { cat "$pins"; echo "$want"; } | cksum | cut -d' ' -f1)"
    PYTHON="$venv/bin/python"
    [ -e "$marker" ] && _command && return
    base="$(_python3)"
    (
        flock 9                                     # a second launch waits for the first one's install
        [ -e "$marker" ] && exit
        echo "triton_dist: installing torch and what else is needed into .venv (once, one to a few minutes)" >&2
        # Without ensurepip (Debian's python3 alone) the base interpreter's pip fills the environment.
        [ -x "$PYTHON" ] || "$base" -m venv "$venv" 2>/dev/null >&2 || "$base" -m venv --without-pip "$venv"
        local pip
        _pip "$PYTHON" || exit
        pip+=(install --quiet --disable-pip-version-check)
        # Torch for GPUs brings the Triton that it is made for, torch for CPU none; so ours is pinned only then.
        # shellcheck disable=SC2086
        "${pip[@]}" -c <(grep -v '^triton==' "$pins") $want && { _has "$PYTHON" triton || "${pip[@]}" -c "$pins" triton; } &&
            touch "$marker"
    ) 9>"$TRITON_DIST_ROOT/.venv.lock"
    [ -e "$marker" ] || { echo "triton_dist: could not prepare .venv, see above" >&2; return 1; }
    _command
}

if [ -n "${TRITON_DIST_PYTHON:-}" ]; then
    PYTHON="$TRITON_DIST_PYTHON"
    command -v "$PYTHON" >/dev/null || { echo "triton_dist: TRITON_DIST_PYTHON=$PYTHON: no such program" >&2; exit 1; }
elif command -v python3 >/dev/null && _suits python3; then
    PYTHON=python3
else
    _make_venv
fi
export PYTHON
