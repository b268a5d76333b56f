# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bad command lines of the launcher, the benchmark and the tuner: what each says, before any rank is started."""
import pytest

from triton_dist.bench import command as bench
from triton_dist.bench import shapes
from triton_dist.checker import command as check
from triton_dist.cli import launch
from triton_dist.runtime import triton_driver
from triton_dist.runtime.backend import detect
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.tune import command as tune

SCRIPT = "test_gemm_rs.py"
LAUNCHER = [  # name, command line, environment, the option, what was found, what to do
    ("no script", [], {}, "no script", "given", "usage: bash launch.sh"),
    ("only options", ["--nproc_per_node", "2"], {}, "no script", "given", "usage: bash launch.sh"),
    ("misspelt script", ["test_ag_gem.py"], {}, "no script", "'test_ag_gem.py'", "did you mean test_ag_gemm.py"),
    ("no such path", ["nowhere/run.py"], {}, "no script", "'nowhere/run.py'", "here or under tests/"),
    ("a folder", ["tests"], {}, "no script", "'tests'", "here or under tests/"),
    ("value left out", ["--nproc_per_node"], {}, "--nproc_per_node", "needs", "a value"),
    ("script taken as a value", ["--nproc_per_node", SCRIPT], {}, "no script", "given", "usage"),
    ("ranks: none", ["--nproc_per_node=0", SCRIPT], {}, "--nproc_per_node", "'0'", "at least 1"),
    ("ranks: negative", ["--nproc_per_node=-2", SCRIPT], {}, "--nproc_per_node", "'-2'", "at least 1"),
    ("ranks: a word", ["--nproc_per_node=four", SCRIPT], {}, "--nproc_per_node", "'four'", "a whole number"),
    ("ranks: a fraction", ["--nproc_per_node=2.5", SCRIPT], {}, "--nproc_per_node", "'2.5'", "a whole number"),
    ("ranks: superscript", ["--nproc_per_node=²", SCRIPT], {}, "--nproc_per_node", "'²'", "a whole number"),
    ("ranks: from the environment", [SCRIPT], {"NPROC_PER_NODE": "all"}, "--nproc_per_node", "'all'", "a whole number"),
    ("ranks: more than a world holds", ["--nproc_per_node=65", SCRIPT], {}, "--nproc_per_node", "65", "at most 64"),
    ("ranks: more than a world holds, on nodes", ["--nnodes=9", "--nproc_per_node=8", SCRIPT], {}, "--nnodes", "72",
     "at most 64"),
    ("nodes: none", ["--nnodes=0", SCRIPT], {}, "--nnodes", "'0'", "at least 1"),
    ("nodes: a word", ["--nnodes", "two", SCRIPT], {}, "--nnodes", "'two'", "a whole number"),
    ("node: negative", ["--nnodes=2", "--node_rank=-1", SCRIPT], {}, "--node_rank", "'-1'", "at least 0"),
    ("node: too large", ["--nnodes=2", "--node_rank=2", SCRIPT], {}, "--node_rank", "2", "below --nnodes"),
    ("port: a word", ["--master_port=ssh", SCRIPT], {}, "--master_port", "'ssh'", "a whole number"),
    ("port: too large", ["--master_port=70000", SCRIPT], {}, "--master_port", "70000", "at most 65535"),
    ("vendor", ["--vendor=intel", SCRIPT], {}, "--vendor", "'intel'", "nvidia or amd"),
]
BENCH = [  # name, command line, words of the message
    ("no op", [], ["required", "command"]),
    ("unknown op", ["all_gather_gemm"], ["all_gather_gemm", "ag_gemm"]),
    ("shapes: unknown", ["ag_gemm", "--shapes", "9B"], ["--shapes 9B", "expected 8B"]),
    ("shapes: two sizes", ["ag_gemm", "--shapes", "64,64"], ["--shapes 64,64", "M,N,K"]),
    ("shapes: zero", ["gemm_rs", "--shapes", "64,0,64"], ["--shapes 64,0,64", "M,N,K"]),
    ("shapes: no rows", ["gemm_rs", "--shapes", "8B@0"], ["--shapes 8B@0", "@M"]),
    ("dtype", ["ag_gemm", "--dtype", "int8"], ["--dtype", "int8", "bfloat16"]),
    ("methods: unknown", ["ag_gemm", "--methods", "auto,fast"], ["--methods", "auto,fast", "portable"]),
    ("methods: none", ["ag_gemm", "--methods", ","], ["--methods", "expected some of"]),
    ("peers", ["ag_gemm", "--peers", "jax"], ["--peers", "jax", "torch"]),
    ("rounds: none", ["ag_gemm", "--rounds", "0"], ["--rounds", "'0'", "at least 1"]),
    ("iters: a word", ["ag_gemm", "--iters", "many"], ["--iters", "'many'", "a whole number"]),
    ("iters: superscript", ["ag_gemm", "--iters", "²"], ["--iters", "'²'", "a whole number"]),
    ("ranks: negative", ["ag_gemm", "--nproc_per_node", "-1"], ["--nproc_per_node", "expected"]),
    ("unknown option", ["ag_gemm", "--warmup", "3"], ["--warmup", "unrecognized"]),
    ("out: no folder", ["ag_gemm", "--out", __file__], ["--out", __file__, "cannot be written", "another folder"]),
    ("late: no time", ["ag_gemm", "--late", "1"], ["--late", "'1'", "RANK:MS"]),
    ("late: superscript", ["ag_gemm", "--late", "²:1"], ["--late", "'²:1'", "RANK:MS"]),
    ("late: negative", ["ag_gemm", "--late", "1:-2"], ["--late", "'-2'", "above 0"]),
    ("jitter: not a number", ["ag_gemm", "--jitter", "nan"], ["--jitter", "'nan'", "milliseconds"]),
    ("jitter: too much", ["ag_gemm", "--jitter", "1e9"], ["--jitter", "'1e9'", "at most 1000"]),
    ("late and jitter", ["ag_gemm", "--late", "1:2", "--jitter", "2"], ["--jitter", "not allowed with", "--late"]),
    ("late-on: nobody is late", ["ag_gemm", "--late-on", "device"], ["--late-on", "needs --late or --jitter"]),
]
TUNE = [  # name, command line, words of the message
    ("no op", [], ["required", "OP"]),
    ("unknown op", ["all_gather"], ["all_gather", "gemm_rs"]),
    ("shapes", ["ag_gemm", "--shapes", "9B"], ["--shapes 9B", "expected 8B"]),
    ("dtype", ["ag_gemm", "--dtype", "bfloat16", "int8"], ["--dtype", "int8", "float16"]),
    ("out: a folder", ["ag_gemm", "--out", "/"], ["--out /", "it is a folder", "another file"]),
    ("out: in no folder", ["ag_gemm", "--out", f"{__file__}/t.json"], ["cannot be written", "another file"]),
    ("out: no table", ["ag_gemm", "--out", __file__], [__file__, "is no table of measured times", "another file"]),
    ("seconds", ["ag_gemm", "--seconds", "soon"], ["--seconds", "'soon'", "a whole number"]),
    ("ranks", ["ag_gemm", "--nproc_per_node", "0"], ["--nproc_per_node", "'0'", "at least 1"]),
]
CHECK = [  # name, command line, words of the message
    ("ranks: none", ["-n", "0", __file__], ["ranks", "at least 1", "found 20, 0, 8"]),
    ("ranks: too many", ["-n", "65", __file__], ["--nproc_per_node", "at most 64", "65"]),
    ("SMs: none", ["--num-sms", "0", __file__], ["SMs", "at least 1", "found 20, 4, 0"]),
    ("trace: a folder", ["--trace", "/", __file__], ["--trace /", "it is a folder"]),
    ("plot: in no folder", ["--plot", f"{__file__}/p.png", __file__], ["--plot", "cannot be written"]),
    ("no script", ["nosuch.py"], ["no script", "'nosuch.py'"]),
]
TOOLS = {f"{tool}: {row[0]}": (main, *row[1:])
         for tool, main, rows in (("check", check.main, CHECK), ("bench", bench.main, BENCH), ("tune", tune.main, TUNE))
         for row in rows}


@pytest.mark.parametrize("argv, environ, names, found, todo", [row[1:] for row in LAUNCHER], ids=[row[0] for row in LAUNCHER])
def test_launcher(argv, environ, names, found, todo):
    with pytest.raises(launch.UsageError) as caught:
        launch.plan(launch.parse(argv, environ), {"CUDA_VISIBLE_DEVICES": ""})
    for part in (names, found, todo):
        assert part in str(caught.value)
    assert launch.plan(launch.parse([SCRIPT], {}), {"CUDA_VISIBLE_DEVICES": ""})[0]


@pytest.mark.parametrize("main, argv, says", TOOLS.values(), ids=TOOLS)
def test_tools(main, argv, says, capsys, monkeypatch):
    monkeypatch.setattr(launch, "start_tool", lambda *_: pytest.fail("ranks were started"))
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("NPROC_PER_NODE", raising=False)
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")       # the checker sets it
    with pytest.raises(SystemExit) as caught:
        main(argv)
    printed = capsys.readouterr().err
    assert caught.value.code == 2 and all(part in printed for part in says), printed


def test_ranks_of_the_environment_are_checked(capsys, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")
    monkeypatch.setenv("NPROC_PER_NODE", "all")
    with pytest.raises(SystemExit) as caught:
        check.main([__file__])
    assert caught.value.code == 2 and "NPROC_PER_NODE='all': expected a whole number" in capsys.readouterr().err


def test_a_word_that_names_no_backend_does_not_keep_the_doctor_from_starting(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_BACKEND", "cuda")
    monkeypatch.setattr(triton_driver, "device_nodes", lambda: False)
    monkeypatch.setattr(triton_driver, "has_driver", lambda: False)
    triton_driver.offer()                               # as at import
    with pytest.raises(InvalidArgument, match="TRITON_DIST_BACKEND='cuda': expected one of"):
        detect()


def test_bench_shapes_must_divide():
    with pytest.raises(ValueError, match="--shapes 9,8,8: M must be divisible by the 4 ranks; found 9"):
        shapes.parse(["9,8,8"], "ag_gemm", 4, emulated=True)
