# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What dispatch and combine share: how tokens are cut into chunks, and where rows lie in the workspace."""
