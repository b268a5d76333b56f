# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist bench` of collectives: sizes instead of shapes, peers instead of a limit, columns as nccl-tests prints them."""
