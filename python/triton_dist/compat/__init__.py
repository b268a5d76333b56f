# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Names of torch and Triton that these do not promise to keep. Nothing else in the package uses such names.

tests/unit/test_compat.py asks for each of them, so that a new version which lacks one says so at once.
"""
