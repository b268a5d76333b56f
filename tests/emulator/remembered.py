# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the calling rank's ops remember of their calls."""
from triton_dist.runtime.state import state


def records(op=None):
    """The records of an op, or of all, each once."""
    found = [record for what, groups in state().records.items() if op in (None, what.name) for record in groups.values()]
    return list({id(record): record for record in found}.values())


def plans(op=None):
    """Their plans."""
    return [plan for record in records(op) for plan in record.plans.values()]


def known(op=None):
    """Their calls that repeated ones are found by."""
    return [call for record in records(op) for call in record.known.values()]


def decisions(op=None):
    """What has been decided, each once."""
    found = [decision for record in records(op) for known in record.decisions.values() for decision in known.values()]
    return list({id(decision): decision for decision in found}.values())
