# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`bench model` on emulated ranks, and with a way that is wrong on purpose."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.bench import command
from triton_dist.bench.model import command as model_command, measure, rows, variants, ways
from triton_dist.bench.model.decoder import Decoder
from triton_dist.bench.model.words import ARCHS
from triton_dist.runtime.groups import resolve

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("phase, ranks", [
    pytest.param(phase, 2, marks=pytest.mark.full) for phase in ("prefill", "decode", "train")])
def test_every_variant_gives_what_one_rank_gives(phase, ranks, tmp_path):
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", TRITON_DIST_PYTHON=sys.executable, OMP_NUM_THREADS="1",
                       PYTHONPATH=str(ROOT / "python"))
    done = subprocess.run([sys.executable, "-m", "triton_dist.bench", "model", "--phase", phase, "--nproc_per_node", str(ranks),
                           "--dtype", "float32", "--layers", "1", "--out", str(tmp_path)], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    folder, = tmp_path.iterdir()
    row, = json.loads((folder / "model.json").read_text())
    emulated = {name for name in variants.VARIANTS[phase] if name not in variants.SYMMETRIC}
    assert set(row["ms"]) == emulated and set(row["errors"]) == emulated - {variants.ALONE}
    assert set(row["skipped"]) == set(variants.VARIANTS[phase]) - emulated
    assert all(error < 1e-5 for error in row["errors"].values())
    assert row["ratios"][row["best_other"]]["ratio"] == 1 and row["best"].startswith("ours")
    assert all(name in done.stdout for name in variants.VARIANTS[phase])


@pytest.mark.full
def test_compiled_decoding_writes_its_caches_in_place():
    def script():
        case = measure.Case("tiny", "decode", 5, 32, 2, torch.float32)
        group = resolve()
        shards, h, _, _ = measure._reference(case, group)
        decoder = Decoder(ARCHS["tiny"], shards, variants.VARIANTS["decode"][variants.ALONE].make(group), 5, 32, group.size)
        _, (code, *_) = run_and_get_code(torch.compile(decoder.forward, dynamic=False), h)
        assert "cpp_fused" in code and str(tuple(decoder.caches[0][0].shape)) in code
        assert f"empty_strided_cpu({tuple(decoder.caches[0][0].shape)}" not in code, "a copy of a whole cache"
    run_ranks(torch.no_grad()(script), 1)


class Wrong(ways.OursWhole):
    """Forgets the sum over ranks."""

    def row(self, x, weight):
        return torch.nn.functional.linear(x, weight)


def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setitem(variants.VARIANTS, "decode", {
        "ours": variants.Variant(Wrong, ours=True), "NCCL": variants.Variant(ways.LibraryWhole)})
    case = measure.Case("tiny", "decode", 4, 6, 1, torch.float32)
    found = run_ranks(lambda: measure.measure(case, resolve(), rounds=2, iterations=1, graph=False), 2)[0]
    assert found.failed == ["ours"] and set(found.milliseconds) == {"NCCL"} and "relative error" in found.skipped["ours"]
    row = rows.build({"arch": "tiny", "phase": "decode", "rows": 4, "cached": 6, "layers": 1, "device": "emulator", "world": 2,
                      "dtype": "float32"}, found, 2, False)
    assert row["best_other"] == "NCCL" and "best" not in row and "relative error" in rows.text([row])


def test_some_ways_alone_and_each_row_is_kept_at_once(monkeypatch):
    """The second row fails: the first has been handed over before."""
    args, kept = command.parser().parse_args(["model", "--rows", "8", "12", "--ways", "nccl,ours", "--rounds", "1"]), []
    usual = measure.measure

    def breaks(case, *more):
        if case.rows == 12:
            raise RuntimeError("cut off")
        return usual(case, *more)
    monkeypatch.setattr(model_command, "measure", breaks)

    def script():
        with pytest.raises(RuntimeError, match="cut off"):
            model_command.run(args, resolve(), lambda row, host: kept.append((row, host)))
    run_ranks(script, 2)
    row, host = kept[0]
    assert len(kept) == 2 and set(row["ms"]) == set(row["errors"]) == {"NCCL", "ours"} and not row["skipped"]
    assert row["rows"] == 8 and host["commit"] == row["commit"]
    assert variants.chosen("decode", "ours-fused-norm-compiled, nccl") == ["ours, fused norm, compiled", "NCCL"]


@pytest.mark.parametrize("words, ranks, said", [(["--graph"], 2, "--graph"), (["--rows", "7"], 2, "--rows 7"),
                                                (["--arch", "llama3-8b"], 3, "key heads"),
                                                (["--ways", "ours,their"], 2, "ours-compiled, .*found 'ours,their'")])
def test_options_that_do_not_fit_are_refused(words, ranks, said):
    args = command.parser().parse_args(["model", *words])

    def refused():
        with pytest.raises(ValueError, match=said):
            model_command.run(args, resolve())
    run_ranks(refused, ranks)
