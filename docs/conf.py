# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Sphinx over docs/. Build with: python -m sphinx -W -b html docs docs/_build"""
import inspect
from pathlib import Path

import triton_dist
import triton_dist.language
import triton_dist.language.extra.libshmem_device
from triton_dist.language._call import SELECT

project = "triton_dist"
copyright = "triton_dist contributors"     # noqa: A001 - Sphinx's name
release = triton_dist.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design",
              "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build", "sg_execution_times.rst", "tutorials/sg_execution_times.rst"]
html_static_path = ["_static"]
html_css_files = ["tables.css"]
default_role = "literal"                    # `name` in docstrings and tutorials, as in Markdown
html_theme = "furo"
html_title = "triton_dist"
copybutton_prompt_text = "$ "               # what a shell shows is not part of a command
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "description"           # types stand beside the words for an argument
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
sphinx_gallery_conf = {
    "examples_dirs": "../tutorials",
    "gallery_dirs": "tutorials",             # written anew, not committed
    "plot_gallery": False,                   # nothing runs: pictures are in tutorial_plots/, drawn by the scripts
    "ignore_pattern": "__init__",
    "within_subsection_order": "FileNameSortKey",
    "remove_config_comments": True,
    "show_signature": False,
    "download_all_examples": False,
    "default_thumb_file": str(Path(__file__).parent / "tutorial_plots" / "none.png"),
}


def _plain_functions() -> None:
    """Device functions are objects of Triton's; autodoc reads the Python functions behind them."""
    for module in (triton_dist.language, triton_dist.language.extra.libshmem_device):
        for name in module.__all__:
            value = getattr(module, name)
            value = getattr(value, "fn", value)
            if callable(value):
                value = inspect.unwrap(getattr(value, SELECT, value))
                value.__module__, value.__name__ = module.__name__, name
                setattr(module, name, value)


_plain_functions()


def _show_code(app, what, name, obj, options, lines: list) -> None:
    """Code in docstrings is indented, or follows `Example:`; reStructuredText would make paragraphs of it."""
    shown, number = [], 0
    while number < len(lines):
        line, before = lines[number], shown[-1] if shown else ""
        block = number + (line.strip() == "Example:")
        end = _end_of_block(lines, block)
        if block > number and end > block and not lines[block].rstrip().endswith("."):
            indent = " " * (len(line) - len(line.lstrip()) + 4)
            shown += [line, f"{indent}.. code-block:: python", "", *["    " + text for text in lines[block:end]]]
            number = end
        elif end > number and not before.strip() and line.startswith("    ") and not lines[number].lstrip().startswith("-"):
            shown += [".. code-block:: python", "", *lines[number:end]]
            number = end
        else:
            shown.append(line)
            number += 1
            if line.rstrip().endswith(":"):                 # a section such as Args: its lines are left to napoleon
                end = _end_of_block(lines, number)
                shown += lines[number:end]
                number = end
    lines[:] = shown


def _end_of_block(lines: list, first: int) -> int:
    """Where the indented lines from `first` on end, without blank lines at their end."""
    last = first
    for number in range(first, len(lines)):
        if lines[number].strip():
            if not lines[number].startswith("    "):
                break
            last = number + 1
    return last


def setup(app) -> None:
    app.connect("autodoc-process-docstring", _show_code, priority=400)      # before napoleon
