# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Names of the published Triton-distributed API, over ours. Our own code uses none of them.

Scripts that were written against that API run as they are by `bash launch.sh --published SCRIPT`. Modules at the published
paths (`triton_dist.utils`, `triton_dist.kernels.nvidia`, ...) are thin and import from here. docs/migration.md lists every
name with its clean form, or why it is missing; `names.py` is its source.
"""
