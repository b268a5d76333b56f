# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Recording emulated ranks: the spans, their files, clocks of ranks that differ, and what is refused."""
import gzip
import json
import re

import pytest
import torch
from hypothesis import given, settings, strategies as st

from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.engine.tracer import Tracer
from triton_dist.ops.grouped_gemm.op import EXPERTS
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.spans import Span
from triton_dist.trace import command, perfetto, picture
from triton_dist.trace.calls import Call
from triton_dist.trace.clocks import Offset, of_trips, offsets, on_clock_of_rank_0
from triton_dist.trace.merged import Trace, common, merged, overlap, summary, union
from triton_dist.trace.rank import record

SCRIPT = """import torch
import triton.language as tl
import triton_dist
import triton_dist.language as dl


@triton_dist.jit
def doubles(x, rounds, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for lap in range(rounds):
        dl.trace_start("tile", lap, 10 + lap)
        tl.store(x + i, tl.load(x + i) * 2)
        dl.trace_stop("tile", lap)


def mine():
    doubles[(2,)](torch.ones(8), 3, BLOCK=8)


def silent():
    torch.ones(3)
"""


def traced(method: str = "portable", **options):
    """(trace, results by rank) of ag_gemm on two emulated ranks."""
    tracer, call = Tracer(), Call("ag_gemm", 256, 256, 256, dict(method=method, **options))
    results = run_ranks(lambda: call.made()(), 2, mode="round-robin", observer=tracer)
    return merged(call.words, "turns", [tracer.spans]), results


@pytest.mark.parametrize("method, options, events", [
    ("portable", {}, {"push", "wait", "mma", "store"}), ("ws", {}, {"push", "wait", "load", "mma", "add", "store"}),
    ("portable", {"comm_sms": 2}, {"push", "wait", "mma", "store"})])
def test_a_trace_has_what_happened_and_changes_no_bit(method, options, events):
    trace, results = traced(method, **options)
    untraced = run_ranks(lambda: Call("ag_gemm", 256, 256, 256, dict(method=method, **options)).made()(), 2, mode="round-robin")
    assert all(torch.equal(one, other) for one, other in zip(results, untraced))
    for rank in (0, 1):
        mine = [span for span in trace.spans if span.rank == rank]
        assert {span.event for span in mine} == events and all(span.start < span.stop for span in mine)
        count = {event: sum(span.event == event for span in mine) for event in events}
        assert count["wait"] == count["mma"] == count["store"] > 0, "one of each a tile"
        arrived = min(span.stop for span in mine if span.event == "wait" and span.number != rank)
        other = [span for span in trace.spans if span.rank != rank and span.event == "push"]
        assert other and min(span.start for span in other) < arrived
        for program in {span.program for span in mine}:
            for event in events:
                row = sorted((span.start, span.stop) for span in mine if (span.program, span.event) == (program, event))
                assert program < 0 or all(a[1] <= b[0] for a, b in zip(row, row[1:])), "spans of a row do not overlap"


def test_a_kernel_that_nobody_traces_notes_nothing():
    assert Tracer.traces and not type(Tracer()).__mro__[1].traces
    run_ranks(lambda: Call("ag_gemm", 64, 64, 64, {"method": "portable"}).made()(), 2)      # the usual observer has no `noted`


@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs"])
def test_the_command_writes_both_files(op, tmp_path, capsys):
    assert command.main([op, "--nproc_per_node", "2", "--shape", "256", "256", "256", "--out", str(tmp_path / "new" / "t")]) == 0
    said = capsys.readouterr().out
    assert f"{op} M=256 N=256 K=256: " in said and "turns" in said and said.count("under compute") == 2
    events = json.loads(gzip.decompress((tmp_path / "new" / "t.json.gz").read_bytes()))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}
    spans = [event for event in events if event["ph"] == "X"]
    rows = {(event["pid"], event["tid"]) for event in spans}
    assert rows == {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in spans)
    drawn = (tmp_path / "new" / "t.svg").read_text()
    assert re.findall(r">(rank \d)<", drawn) == ["rank 0", "rank 1"] and drawn.count(">multiplies<") == 2
    assert "turns of the emulator (not time on a GPU)" in drawn and drawn.count("<polygon") >= 6


OTHERS = [*[(name, "packets", {"mma", "push", "wait", "store"}) for name in ("gemm_ar", "gemm_ar_rmsnorm")],
          ("all_reduce", "one_shot", {"push", "wait", "store"}),
          ("all_reduce", "two_shot", {"push", "wait", "store"}), ("all_reduce", "push", {"push", "wait", "store"}),
          ("all_gather", "push", {"push", "wait", "store"}), ("reduce_scatter", "push", {"push", "wait", "store"}),
          ("all_to_all_single", "push", {"push", "wait", "store"}), ("ep_dispatch", "push", {"push", "wait", "store"}),
          ("ep_combine", "push", {"push", "wait", "store"}), ("ep_dispatch", "self_flagged", {"push", "wait", "store"}),
          ("ep_combine", "self_flagged", {"push", "wait", "store"}),
          *[(name, "push", {"push", "wait", "store"}) for name in ("all_to_all_vdev_2d", "all_to_all_vdev_2d_offset")],
          ("all_to_all_vdev", "push", {"push", "wait", "store"}),
          ("all_reduce_rmsnorm", "one_shot", {"push", "wait", "store"}),
          ("all_reduce_rmsnorm", "two_shot", {"push", "wait", "store"}),
          *[(name, "portable", {"mma", "store"}) for name in ("grouped_gemm", "rmsnorm_gemm")]]


@pytest.mark.parametrize("op, method, events", OTHERS, ids=lambda value: value if isinstance(value, str) else "")
def test_other_ops_are_traced(op, method, events, tmp_path, capsys):
    """Each program's spans of one event follow each other, and both ranks do all of it. Sums of all_reduce take no turn of the
    emulator, so no span of them is left."""
    say = [op, "--nproc_per_node", "2", "--method", method, "--shape", "32", "32", "32", "--out", str(tmp_path / "t")]
    assert command.main(say) == 0, capsys.readouterr().err
    found = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    spans = [event for event in found if event["ph"] == "X"]
    for rank in (0, 1):
        assert {event["name"].split()[0] for event in spans if event["pid"] == rank} == events
    rows: dict = {}
    for event in spans:
        rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for row in map(sorted, rows.values()):
        assert all(one[1] <= other[0] for one, other in zip(row, row[1:]))


@pytest.mark.one
@pytest.mark.parametrize("layout", ["indexed", "expert"])
def test_the_kernel_that_places_rows_is_traced(layout, tmp_path, capsys):
    """It begins where the kernel of the dispatch has ended, and goes over each source's rows. Rows by expert come after it."""
    say = ["ep_dispatch", "--layout", layout, "--method", "push", "--shape", "64", "64", "64", "--out", str(tmp_path / "t")]
    assert command.main(say) == 0, capsys.readouterr().err
    found = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    for rank in (0, 1):
        spans = [event for event in found if event["ph"] == "X" and event["pid"] == rank]
        placed = [event for event in spans if event["args"]["kernel"] == "place_kernel"]
        assert {event["name"] for event in placed} == {"load of rank all", "store of rank 0", "store of rank 1"}
        expanded = [event for event in spans if event["args"]["kernel"] == "rows_by_expert_kernel"]
        stored = {event["name"] for event in expanded if event["name"].startswith("store")}
        assert stored == ({"store of rank 0", "store of rank 1"} if layout == "expert" else set())
        in_turn = [[event for event in spans if event not in placed + expanded], placed, expanded]
        for first, then in zip(in_turn, in_turn[1:] if expanded else in_turn[1:2]):
            assert min(event["ts"] for event in then) >= max(event["ts"] + event["dur"] for event in first)


def test_a_grouped_gemm_says_which_expert_a_tile_is_of(tmp_path, capsys):
    say = ["grouped_gemm", "--nproc_per_node", "1", "--method", "portable", "--shape", "64", "64", "64", "--out"]
    assert command.main([*say, str(tmp_path / "t")]) == 0, capsys.readouterr().err
    found = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    names = [event["name"] for event in found if event["ph"] == "X"]
    assert set(names) == {f"{event} of expert {expert}" for event in ("mma", "store") for expert in range(EXPERTS)}


def test_a_call_that_sends_nothing_shows_no_communication(tmp_path, capsys):
    """The core's programs wait for tiles of weights, which come from no other rank."""
    say = ["grouped_gemm", "--method", "ws", "--shape", "128", "128", "128", "--out", str(tmp_path / "t")]
    assert command.main(say) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert said.count("communication 0 turns, none") == 2 and "inferred" not in said


def test_a_function_of_a_script_is_traced(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    assert command.main(["script.py:mine", "--nproc_per_node", "1"]) == 0
    events = json.loads(gzip.decompress((tmp_path / "trace_script.json.gz").read_bytes()))["traceEvents"]
    found = sorted((event["args"]["program"], event["args"]["lap"], event["name"]) for event in events if event["ph"] == "X")
    assert found == [(program, lap, f"tile # {10 + lap}") for program in range(2) for lap in range(3)]
    assert command.main(["script.py:silent"]) == 1 and "its kernels have recorded nothing" in capsys.readouterr().err


@pytest.mark.parametrize("words, said", [
    (["ag_gemm", "--shape", "64", "-4", "64"], "--shape: expected sizes of at least 1, found 64 -4 64"),
    (["script.py:mine", "--method", "ws"], "--method is of an op"),
    (["script.py:mine", "--shape", "8", "8", "8"], "--shape is of an op"),
    (["attention"], "or path.py:function, found 'attention'"),
    (["nowhere.py:f"], "there is no file nowhere.py"), (["ag_gemm", "--shape", "33", "64", "64"], "as multiples of 2 ranks"),
    (["ag_gemm", "--method", "magic", "--shape", "64", "64", "64"], "method: expected one of"),
    (["all_gather", "--layout", "expert", "--shape", "64", "64", "64"], "all_gather does not take layout"),
    (["ep_combine", "--comm_sms", "2", "--shape", "64", "64", "64"], "ep_combine does not take comm_sms")])
def test_what_cannot_be_traced_is_told(words, said, tmp_path, capsys):
    assert command.main([*words, "--out", str(tmp_path / "t")]) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_files_that_cannot_be_written_are_told_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "_emulated", lambda *_: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    (tmp_path / "t.svg").mkdir()
    for out, why in ((tmp_path / "file" / "t", "Not a directory|File exists"), (tmp_path / "t", "it is a folder")):
        assert command.main(["ag_gemm", "--shape", "64", "64", "64", "--out", str(out)]) == 2
        assert re.search(f"--out {out}.* cannot be written: ({why}); name another file", capsys.readouterr().err)


def test_spans_that_overlap_have_rows_of_their_own():
    """Perfetto draws a span inside the one of its row that has begun before, and drops what ends later than that."""
    spans = (Span(0, "a", 3, "mma", 0, 1, 0, 10), Span(0, "b", 3, "mma", 0, 1, 5, 20), Span(0, "a", 3, "mma", 1, 1, 10, 12),
             Span(0, "b", 3, "add", 0, 1, 20, 30))
    found = perfetto.events(Trace("", "turns", spans))
    rows = {(e["cat"], e["args"]["lap"], e["name"][:3]): e["tid"] for e in found if e["ph"] == "X"}
    assert rows["a", 0, "mma"] == rows["a", 1, "mma"] and len(set(rows.values())) == 3
    named = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert sorted(named.values()) == ["program   3 add", "program   3 mma", "program   3 mma"]


# -- clocks ------------------------------------------------------------------------------------------------------------
class Skewed(Tracer):
    """A tracer whose ranks have clocks of their own: rank r is 1000 * r turns ahead."""

    def clock(self) -> int:
        return super().clock() + 1000 * self._scheduler.current.rank


def test_ranks_measure_how_far_their_clocks_are_apart():
    found = run_ranks(lambda: offsets(resolve(None), trips=5), 3, observer=Skewed())
    assert found[0] == found[1] == found[2] and found[0][0] == Offset(0.0, 0.0, 0.0)
    for rank in (1, 2):
        assert abs(found[0][rank].ahead - 1000 * rank) <= found[0][rank].error < 100


def test_a_recorded_call_is_on_one_clock():
    tracer = Skewed()

    def rank():
        return record(Call("ag_gemm", 128, 128, 128, {"method": "portable"}), tracer,
                      lambda rank: [span for span in tracer.spans if span.rank == rank])
    trace, nothing = run_ranks(rank, 2, mode="round-robin", observer=tracer)
    assert nothing is None and trace.ranks == [0, 1] and 0 < trace.error < 100
    assert trace.end < 1000, "else rank 1 would be a thousand turns behind"
    assert not trace.inferred and "apart by at most" in summary(trace)


def test_the_quickest_trip_counts_and_drift_is_interpolated():
    assert of_trips([(0, 100), (200, 210), (300, 340)], [60, 1205, 1330]) == Offset(1000.0, 5.0, 1205.0)
    before, after = Offset(100.0, 1.0, 1000.0), Offset(200.0, 1.0, 3000.0)
    assert [on_clock_of_rank_0(t, before, after) for t in (1000.0, 2000.0, 3000.0)] == [900.0, 1850.0, 2800.0]
    assert on_clock_of_rank_0(5.0, before, before) == -95.0


# -- what is drawn -----------------------------------------------------------------------------------------------------
def test_pushes_that_nobody_saw_are_inferred_from_arrivals():
    spans = [Span(0, "k", 0, "wait", 0, 0, 10, 11), Span(0, "k", 0, "mma", 0, 0, 11, 30), Span(0, "k", 0, "wait", 1, 1, 30, 50),
             Span(0, "k", 1, "wait", 0, 1, 20, 45), Span(0, "k", 0, "mma", 1, 1, 50, 60)]
    trace = merged("call", "ns", [spans])
    pushes = [span for span in trace.spans if span.event == "push"]
    assert trace.inferred and [(span.start, span.stop, span.number) for span in pushes] == [(0, 35, 1)]
    found = overlap(trace, 0)
    assert (found.communication, found.covered, found.exposed) == (35, 19, 1 + 20)
    assert "communication (inferred)" in picture.draw(trace) and "(inferred from arrivals)" in summary(trace)
    times = [event["ts"] for event in perfetto.events(trace) if event["ph"] == "X"]
    assert min(times) == 0 and max(times) == pytest.approx(0.040)


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda one: (one[0], sum(one))), max_size=12)


@settings(max_examples=60)
@given(intervals, intervals)
def test_unions_and_what_they_share(one, other):
    ones, others = ({t for start, stop in some for t in range(start, stop)} for some in (one, other))
    assert sum(stop - start for start, stop in union(one)) == len(ones)
    assert common(union(one), union(other)) == len(ones & others)
