# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist trace`: what the programs of all ranks did in one call, as a Perfetto file and a picture."""
