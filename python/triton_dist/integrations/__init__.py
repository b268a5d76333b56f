# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How models that others have written are parallelised. What is imported from other libraries is so when it is used."""
