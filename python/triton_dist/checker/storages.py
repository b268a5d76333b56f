# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the checker knows of torch's storages, for as long as they live."""
import weakref
from typing import Any


class ByStorage:
    """A value for each of some storages, by address. It goes with its storage: the memory may be used again unseen."""

    def __init__(self) -> None:
        self._found: dict = {}               # address -> (value, weak reference to the storage)

    def keep(self, storage: Any, value: Any) -> None:
        """Sets the value of a storage."""
        base, found = storage.data_ptr(), self._found

        def forget(gone: Any) -> None:
            if found.get(base, (None, None))[1] is gone:
                del found[base]
        found[base] = value, weakref.ref(storage, forget)

    def get(self, base: int) -> Any:
        """The value of the storage at an address, or None."""
        return self._found.get(base, (None, None))[0]

    def pop(self, base: int) -> Any:
        """The same; the value is dropped."""
        return self._found.pop(base, (None, None))[0]

    def __len__(self) -> int:
        return len(self._found)
