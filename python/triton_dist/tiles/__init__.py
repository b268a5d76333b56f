# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist tiles`: the order in which programs take the tiles of a product, drawn for any grid."""
