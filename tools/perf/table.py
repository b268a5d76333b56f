# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tables of Markdown."""

_OF_A_RUN = ("dtype", "type", "graph", "rounds", "date", "commit")         # columns that often say the same in all rows


def markdown(lines: list) -> str:
    """Lines of cells as a table, the first one its header."""
    header, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([header, "|" + "---|" * len(lines[0]), *body]) + "\n"


def narrow(lines: list) -> str:
    """The table without such columns where they say the same in all rows. A sentence before it says that once."""
    header, *body = lines
    same = [at for at in range(len(header))
            if header[at] in _OF_A_RUN and len(body) > 1 and len({line[at] for line in body}) == 1]
    kept = [[cell for at, cell in enumerate(line) if at not in same] for line in lines]
    said = ", ".join(f"{header[at]} {body[0][at]}" for at in same)
    return (f"In all rows: {said}.\n\n" if said else "") + markdown(kept)
