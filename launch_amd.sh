#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
# launch.sh for ROCm machines: where a bare test name exists for both vendors, the one under tests/amd is run.
exec bash "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/launch.sh" --vendor=amd "$@"
