# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Published path. The names are those of triton_dist.dropin and of language_extra."""
from triton_dist.dropin.stream_calls import set_signal, wait_eq  # noqa: F401
from triton_dist.language.extra.language_extra import fence, globaltimer, pack_b32_v2, smid  # noqa: F401
