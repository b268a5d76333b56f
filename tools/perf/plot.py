# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Pictures from result files, drawn on any machine: every way to compute a shape relative to the limit T*, a panel a model."""
from pathlib import Path

from tools.perf import peers_plot as collective
from triton_dist.bench.collective.sizes import BESIDE_PEERS
from triton_dist.bench.results import digest, headline, load

_COLUMNS = 2                                # panels side by side
_FIXED = {"in sequence": "#7f7f7f", "torch, fused": "#e69f00"}         # colours that colour-blind readers tell apart
_OURS = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_LIMIT = "limit T* = max(matmul, collective), each alone"


def draw(folder: Path) -> list[Path]:
    """Draws <op>.png beside each <op>.json in `folder`; returns the pictures. Of what has peers one for each world, dtype, and
    calls in graphs or not: <op>.png, <op>-2.png, ... FileNotFoundError where there is none.

    Rows with stragglers are not drawn.
    """
    sources = sorted(path for path in Path(folder).glob("*.json") if path.name != "host.json")
    drawn = {path.with_suffix(".png"): headline(load(path)) for path in sources}
    if not any(drawn.values()):
        raise FileNotFoundError(f"{folder}: expected result files such as ag_gemm.json, found none")
    pictures = []
    for target, rows in drawn.items():
        if target.stem in BESIDE_PEERS:
            pictures += [collective.picture(alike, target if i == 0 else target.with_stem(f"{target.stem}-{i + 1}"))
                         for i, alike in enumerate(collective.alike(rows))]
        elif rows:
            pictures.append(picture(rows, target))
    return pictures


def curves(row: dict) -> dict:
    """Label -> (T*/T, low, high) of every way to compute a row, ours last."""
    labels = {"seq": "in sequence", **{peer: f"{peer}, fused" for peer in row["ms_peers"]},
              **{method: f"triton_dist, {method}" for method in row["ours"]}}
    figures = {name: row["all_efficiency"].get(name) for name in labels}
    return {labels[name]: (found["efficiency"], *found["ci95"]) for name, found in figures.items() if found is not None}


def fingerprint(rows: list) -> str:
    """Names what a picture of `rows` shows (results.digest)."""
    return digest([(title, row["m"], curves(row)) for title, panel in _panels(rows).items() for row in panel])


def picture(rows: list, target: Path) -> Path:
    """Draws rows of one op, one row a problem, into a PNG; returns its path."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = _panels(rows)
    labels = list(dict.fromkeys(label for row in rows for label in curves(row)))
    ours = [label for label in labels if label not in _FIXED]
    colours = {**_FIXED, **{label: _OURS[i % len(_OURS)] for i, label in enumerate(ours)}}
    highs = [high for row in rows for label, (_, _, high) in curves(row).items() if label in ours]
    top = max(1.1, min(1.6, max(highs) + 0.03))
    lines, columns = -(-len(panels) // _COLUMNS), min(_COLUMNS, len(panels))
    figure, axes = pyplot.subplots(lines, columns, squeeze=False, layout="constrained",
                                   figsize=(5.2 * columns, 3.1 * lines + 0.7))
    for axis, (title, panel) in zip(axes.flat, panels.items()):
        _panel(axis, panel, colours)
        axis.set_title(title, fontsize=9)
        axis.set_ylim(0, top)
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("T* / T, higher is faster", fontsize=8)
    row = rows[0]
    figure.suptitle(f"{row['op']} {row['dtype']}, {row['world']} x {row['device']}", fontsize=11)
    handles: dict = {}
    for axis in axes.flat[:len(panels)]:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels())))
    figure.legend(handles.values(), handles.keys(), fontsize=8, ncols=4, loc="outside lower center")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=100, metadata={"Source": fingerprint(rows)})
    pyplot.close(figure)
    return target


def _panels(rows: list) -> dict:
    """Title -> rows of one weight, M ascending."""
    panels: dict = {}
    for row in sorted(rows, key=lambda row: (-row["world"], row["dtype"], row["n"] * row["k"], row["m"])):
        model = row["shape"].partition("@")[0] + ": " if "@" in row["shape"] else ""
        several = len({(row["world"], row["dtype"]) for row in rows}) > 1
        title = f"{model}N {row['n']}, K {row['k']}" + (f", {row['dtype']}, {row['world']} ranks" if several else "")
        panels.setdefault(title, []).append(row)
    return panels


def _panel(axis, rows: list, colours: dict) -> None:
    drawn = [curves(row) for row in rows]
    labels = [label for label in colours if any(label in found for found in drawn)]
    for i, label in enumerate(labels):
        # Beside one another, so that intervals can be told apart.
        here = [(x + 0.09 * (i - (len(labels) - 1) / 2), found[label]) for x, found in enumerate(drawn) if label in found]
        heights = [value for _, (value, _, _) in here]
        spread = [[max(0.0, value - low) for _, (value, low, _) in here],
                  [max(0.0, high - value) for _, (value, _, high) in here]]
        axis.errorbar([x for x, _ in here], heights, yerr=spread, label=label, color=colours[label], marker="o",
                      markersize=4, linewidth=1, elinewidth=1, capsize=2)
    axis.axhline(1.0, color="black", lw=1, linestyle="--", label=_LIMIT)
    axis.set_xticks(range(len(rows)), [str(row["m"]) for row in rows], fontsize=8)
    axis.set_xlim(-0.5, len(rows) - 0.5)
    axis.set_xlabel("M", fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
