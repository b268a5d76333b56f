# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""One rank of a trace on GPUs: warms up, measures clocks, records one call; rank 0 writes the files.

Compiled and run over an emulated world by the tests; it has not run on GPUs yet.
"""
import json
import sys
from typing import Any

from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import UnsupportedFeature
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.spans import Span
from triton_dist.runtime.streams import synchronize
from triton_dist.runtime.world import finalize_distributed, initialize_distributed
from triton_dist.trace.calls import Call
from triton_dist.trace.clocks import offsets
from triton_dist.trace.merged import Trace, merged

WARM_UP = 3


def record(call: Call, tracer: Any, read: Any) -> Trace | None:
    """Records one call on every rank. Collective; rank 0 gets the trace, others None.

    Args:
        call: what is called.
        tracer: has `clear()`, and is where this rank's kernels record.
        read: gives this rank's spans.
    """
    group, function = resolve(None), call.made()
    for _ in range(WARM_UP):
        function()
    synchronize()
    before = offsets(group)
    group.barrier()
    tracer.clear()
    group.barrier()
    function()
    synchronize()
    spans: list[Span] = read(group.rank)
    group.barrier()
    after = offsets(group)
    everyone = group.all_gather_object([vars(span) for span in spans])
    if group.rank:
        return None
    return merged(call.words, "ns", [[Span(**fields) for fields in some] for some in everyone], before, after,
                  call.local)


def main() -> None:
    """Entry point of a rank: the call and the files as JSON on the command line."""
    from triton_dist.trace.files import finish
    words = json.loads(sys.argv[1])
    initialize_distributed()
    tracer = getattr(backend(), "tracer", None)
    if tracer is None:
        raise UnsupportedFeature("this process does not trace: set TRITON_DIST_TRACE=1 before it starts")
    found = record(Call(**words["call"]), tracer, tracer.read)
    if found is not None:
        finish(found, words["out"])
    finalize_distributed()


if __name__ == "__main__":
    main()
