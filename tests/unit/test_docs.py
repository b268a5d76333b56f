# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The documentation builds without a warning, and what it shows is there."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launched import python

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def build(builder, folder, *options):
    """Reads all pages, resolves what they refer to, and writes them; a warning is an error."""
    environment = dict(os.environ, PYTHONPATH=f"{ROOT / 'python'}:{os.environ.get('PYTHONPATH', '')}",
                       TRITON_DIST_BACKEND="emulator")
    script = folder / "build.py"
    script.write_text("import gc, sys\ngc.disable()\n"                              # a quarter faster
                      "from sphinx.cmd.build import main\nsys.exit(main(sys.argv[1:]))\n")
    done = python(str(script), "-W", "--keep-going", "-q", "-b", builder, *options, str(DOCS), str(folder),
                  environment=environment, seconds=300)
    assert done.returncode == 0, done.stderr


def public_names():
    """(module, names that its reference must have), of each public module."""
    import triton_dist
    import triton_dist.aot
    import triton_dist.checker
    import triton_dist.language
    import triton_dist.layers
    import triton_dist.language.extra.libshmem_device
    import triton_dist.ops
    modules = (triton_dist, triton_dist.language, triton_dist.language.extra.libshmem_device, triton_dist.ops, triton_dist.layers,
               triton_dist.checker, triton_dist.aot)
    return [(module.__name__, [name for name in module.__all__ if not isinstance(getattr(module, name), int)])
            for module in modules]                         # constants have a table


def test_docs_are_read_without_warnings(tmp_path):
    """Written as XML, which is what Sphinx has before it writes HTML, in half the time."""
    build("xml", tmp_path, "-D", "smartquotes=0")
    reference = (tmp_path / "api.xml").read_text()
    known = {name for names in re.findall(r'<desc_signature [^>]*?\bids="([^"]*)"', reference) for name in names.split()}
    for module, public in public_names():
        missing = [name for name in public if f"{module}.{name}" not in known]
        assert not missing, f"{module}: not in the reference: {missing}"
    code = re.findall(r'<literal_block [^>]*language="python".*?</literal_block>', reference, re.S)
    assert any("triton_dist.language" in block for block in code), "the code of a docstring is no paragraph"
    assert sum("ag_gemm" in block for block in code) >= 2
    types = re.findall(r"<field_name>Return type</field_name>(.*?)</field>", reference, re.S)
    types = [re.sub("<.*?>", "", text) for text in types]
    sentences = [text.strip() for text in types if re.search(r"[.;] ", text)]
    assert len(types) > 100 and not sentences, f"words before a colon in Returns are taken for a type: {sentences}"
    for script in sorted((ROOT / "tutorials").glob("*.py")):
        page = (tmp_path / "tutorials" / f"{script.stem}.xml").read_text()
        assert re.search(rf'<literal_block [^>]*language="bash"[^>]*>[^<]*{script.name}', page), "the command is on its page"
        drawn, shown = f'plot("{script.stem}"' in script.read_text(), f'uri="tutorial_plots/{script.stem}.png"' in page
        assert drawn == shown, f"{script.name}: a picture where the script draws one"


@pytest.mark.full
def test_docs_build_without_warnings(tmp_path):
    build("html", tmp_path)
    reference = (tmp_path / "api.html").read_text()
    for module, public in public_names():
        missing = [name for name in public if f'id="{module}.{name}"' not in reference]
        assert not missing, f"{module}: not in the reference: {missing}"
    code = re.findall(r'<div class="highlight-python.*?</div>', reference, re.S)
    assert any("triton_dist.language" in block for block in code), "the code of a docstring is no paragraph"
    assert sum("ag_gemm" in re.sub("<.*?>", "", block) for block in code) >= 2
    for script in sorted((ROOT / "tutorials").glob("*.py")):
        page = (tmp_path / "tutorials" / f"{script.stem}.html").read_text()
        assert script.name in re.sub("<.*?>", "", page), "the command is on its page"
        drawn = f'plot("{script.stem}"' in script.read_text()
        assert drawn == (f"_images/{script.stem}.png" in page), f"{script.name}: a picture where the script draws one"


def test_links_between_files_lead_somewhere():
    """Also in the pages at the top, which Sphinx does not read."""
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\((\w[\w./-]+)(?:#[\w-]+)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    for path in re.findall(r"`((?:tests|tutorials|scripts)/[\w./-]+)`", (DOCS / "troubleshooting.md").read_text()):
        assert (ROOT / path).exists(), path


def test_a_blank_line_ends_each_table():
    """Without it Markdown takes the next line for a row."""
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "benchmarks" / "results").glob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        assert not re.findall(r"^\|.*\n(?![|#\n]).+", text, re.M), f"{page.name}: a line joins the table above it"


def test_the_list_of_ops_has_each_with_its_methods():
    from triton_dist import ops
    page = (DOCS / "ops.md").read_text()
    for name in ops.OPS.keys() & set(ops.__all__):          # other tests may have added ops of their own
        row = next((line for line in page.splitlines() if line.startswith("|") and f"`{name}" in line), "")
        methods = re.findall(r"`(\w+)`", row.rsplit("|", 2)[-2]) if row else []
        assert methods == list(ops.OPS[name].methods), name
    functions = {name for name in ops.__all__ if name[0].islower()}
    assert functions <= set(re.findall(r"`(\w+)[`(]", page))


def test_pages_of_figures_have_the_notes_of_today():
    """Notes that have changed are in the pages only after these are written again."""
    pages = (DOCS / "performance.md").read_text() + (DOCS / "performance_rows.md").read_text() + (DOCS / "bars.md").read_text()
    for notes in sorted((ROOT / "benchmarks" / "results").glob("notes*.md")):
        missing = [line for line in notes.read_text().splitlines() if line.strip() and line not in pages]
        assert not missing, f"{notes.name}: write the pages again: python -m tools.perf docs: {missing[0][:80]}"


def test_every_picture_says_what_it_shows():
    pages = {page.name: page.read_text() for page in [*DOCS.glob("*.md"), *(ROOT / "tutorials").glob("*.py")]}
    for name, text in pages.items():
        said = re.findall(r"\{image\}.*\n(.*)|\.\. image:: .*\n#? *(.*)|!\[(.*?)\]\(", text)
        words = [next(filter(None, found), "").removeprefix(":alt:").strip() for found in said]
        assert all(len(word) > 10 for word in words) and len(set(words)) == len(words), name
    alike = [word for text in pages.values() for word in re.findall(r":alt: (.*)", text)]
    assert len(alike) > 15 and len(set(alike)) == len(alike), "two pictures of different things with the same words"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_rule_that_is_cited_is_on_the_page():
    rules = set(re.findall(r"^\*\*(\d+b?)\. ", (DOCS / "protocol.md").read_text(), re.M))
    cited = {number for folder in ("python", "tests") for path in (ROOT / folder).rglob("*.py")
             for number in re.findall(r"\brules? (\d+b?)\b", path.read_text())}
    assert len(cited) > 12 and cited <= rules


def test_the_shmem_table_is_what_its_script_writes(tmp_path):
    python(str(DOCS / "write_shmem_table.py"), str(tmp_path / "table.md")).check_returncode()
    written = (tmp_path / "table.md").read_text()
    assert (DOCS / "shmem_functions.md").read_text() == written, "write it again: python docs/write_shmem_table.py"
    network_only, of_others = 12, 2        # putmem_rma and the like; set_rocshmem_ctx and barrier_all_vec
    reductions = 12
    assert written.count("| emulator only |\n") == network_only + of_others + reductions
    assert written.count("| works |\n") == written.count("\n| `") - network_only - of_others - reductions


def test_the_picture_is_drawn_by_its_script(tmp_path):
    committed = (DOCS / "design.svg").read_text()
    assert len(committed) < 200_000
    subprocess.run([sys.executable, str(DOCS / "draw_design.py"), str(tmp_path / "design.svg")], check=True, timeout=120)
    words = [re.findall(r"<text[^>]*>([^<]+)</text>", text) for text in (committed, (tmp_path / "design.svg").read_text())]
    assert words[0] and words[0] == words[1], "draw it again: python docs/draw_design.py"


def test_pictures_that_explain_are_drawn_by_their_script(tmp_path):
    """Those of tiles byte for byte, the others by their words and the points of their lines."""
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator")
    python(str(DOCS / "draw_explanations.py"), str(tmp_path), environment=environment).check_returncode()
    for drawn in sorted(tmp_path.glob("*.svg")):
        committed = (DOCS / drawn.name).read_text()
        kept = [re.findall(r"<text[^>]*>([^<]+)</text>", text) for text in (committed, drawn.read_text())]
        again = f"{drawn.name}: draw it again: python docs/draw_explanations.py"
        assert kept[0] and kept[0] == kept[1] and len(committed) < 200_000, again
        assert not drawn.name.startswith("tiles") or committed == drawn.read_text(), again
    assert {path.name for path in tmp_path.glob("*.svg")} == {"memory_model.svg", "patterns.svg", "tiles_grouped.svg",
                                                            "tiles_rotated.svg"}


def test_install_shows_what_the_doctor_says():
    """The same sections and lines as the doctor's report has on a machine with no GPU."""
    from triton_dist.doctor.examine import examine
    page = (DOCS / "install.md").read_text()
    shown = re.search(r"```text\n(triton_dist .*?)```", page, re.S)[1].splitlines()
    report = examine({}, lambda name, **_: {"backend": "emulator"} if name == "chosen" else {})
    for title, findings in report.sections.items():
        assert title in shown
        assert all(any(line[8:].startswith(finding.name) for line in shown) for finding in findings), title


def test_install_states_the_ranges_that_are_checked():
    from triton_dist.runtime.versions import PYTHON, TORCH, TRITON
    page = (DOCS / "install.md").read_text()
    assert f"| Python | {PYTHON} |" in page and f"| torch | {TORCH} |" in page and f"| triton | {TRITON} |" in page
