# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the doctor finds, as data, as JSON and as text."""
import json
from dataclasses import asdict, dataclass, field

OK, NOTE, WARN, BAD = "ok", "-", "warn", "BAD"


@dataclass
class Finding:
    """One line. status: OK, NOTE (absent, and not needed), WARN, or BAD (the chosen backend needs it).

    remedy: the command or the step that fixes it.
    """
    name: str
    value: str
    status: str = OK
    remedy: str = ""


@dataclass
class Report:
    """Findings by section, in order, and the backend that this process would take."""
    backend: str = ""
    sections: dict = field(default_factory=dict)        # title -> list of Finding
    peers: list = field(default_factory=list)           # rows of the peer matrix, first the header

    def add(self, section: str, *findings: Finding) -> None:
        self.sections.setdefault(section, []).extend(findings)

    def findings(self) -> list[Finding]:
        return [finding for findings in self.sections.values() for finding in findings]

    @property
    def exit_code(self) -> int:
        """1 when something that the chosen backend needs is missing."""
        return int(any(finding.status == BAD for finding in self.findings()))

    def to_json(self) -> str:
        return json.dumps(dict(asdict(self), exit_code=self.exit_code), indent=1)

    def to_text(self) -> str:
        lines = []
        for title, findings in self.sections.items():
            width = max(len(finding.name) for finding in findings)
            lines += [title] + [f"  {f.status:<4}  {f.name:<{width}}  {f.value}".rstrip() for f in findings]
            if title == "GPUs":
                lines += ["", *self._matrix()]
            lines.append("")
        fix = [f for f in self.findings() if f.remedy and f.status in (WARN, BAD)]
        lines += ["to fix" if fix else "nothing to fix"]
        lines += [f"  {f.status:<4}  {f.name}: {f.remedy}" for f in fix]
        return "\n".join(lines)

    def _matrix(self) -> list[str]:
        widths = [max(len(row[i]) for row in self.peers) for i in range(len(self.peers[0]))] if self.peers else []
        return ["who can load and store whose memory"] * bool(self.peers) + [
            ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths))).rstrip() for row in self.peers]
