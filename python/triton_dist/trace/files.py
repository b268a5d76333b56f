# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The two files of a trace."""
from pathlib import Path

from triton_dist.runtime.errors import UnsupportedFeature
from triton_dist.trace import perfetto, picture
from triton_dist.trace.merged import Trace, summary


def finish(trace: Trace, out: str) -> None:
    """Writes OUT.json.gz and OUT.svg, and says what the trace shows. Raises UnsupportedFeature where nothing was recorded."""
    if not trace.spans:
        raise UnsupportedFeature(f"{trace.title}: its kernels have recorded nothing; dl.trace_start and dl.trace_stop record "
                                 "(docs/profiling.md). Libraries record nothing: try a method of ours, such as --method portable")
    perfetto.write(trace, Path(f"{out}.json.gz"))
    picture.write(trace, Path(f"{out}.svg"))
    print(f"{summary(trace)}\n{out}.json.gz: open it at https://ui.perfetto.dev\n{out}.svg: a picture", flush=True)
