# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`python -m triton_dist` is `triton-dist`."""
from triton_dist.cli.main import main

if __name__ == "__main__":
    main()
