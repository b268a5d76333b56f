# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The two files of a trace."""
from pathlib import Path

from triton_dist.runtime.errors import UnsupportedFeature
from triton_dist.trace import perfetto, picture
from triton_dist.trace.merged import Trace, summary


def files(out: str) -> tuple[Path, Path]:
    """The file for Perfetto and the picture."""
    return Path(f"{out}.json.gz"), Path(f"{out}.svg")


def finish(trace: Trace, out: str) -> None:
    """Writes OUT.json.gz and OUT.svg, and says what the trace shows. Raises UnsupportedFeature where nothing was recorded."""
    if not trace.spans:
        raise UnsupportedFeature(f"{trace.title}: its kernels have recorded nothing; dl.trace_start and dl.trace_stop record "
                                 "(docs/profiling.md). Libraries record nothing: try a method of ours, such as --method portable")
    timeline, drawn = files(out)
    perfetto.write(trace, timeline)
    picture.write(trace, drawn)
    print(f"{summary(trace)}\n{timeline}: open it at https://ui.perfetto.dev\n{drawn}: a picture", flush=True)
