"""Group numbers for Services: a name keeps its number while its Service lives, however often the agent restarts.

A number is a digest of the name. Two names may have the same digest; the second one then gets the next free number. So
a number depends on which name came first, and a restarted agent must not assign different numbers: if two names
exchanged theirs, packets of one Service would reach the endpoints of the other until all flows are exchanged. Therefore
the numbers of all names are saved in a file.

The file is not fsynced: when the machine crashes, the switch loses its groups as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from windlass import files

FILE = "group-numbers"
SPACE = 256  # numbers for one Service port: one group for each traffic policy, or several if there are many endpoints
SPACES = 0xFFFFFF  # OpenFlow reserves group numbers from 0xffffff00
_STALE = 1000  # names of deleted Services that may stay in the file


class GroupNumbers:
    """Assigns a range of numbers to each name. `problem` says why numbers could not be saved; empty: all are saved."""

    def __init__(self, directory: Path | None = None, spaces: int = SPACES) -> None:
        """Without a directory nothing is saved."""
        self.problem = ""
        self._file = directory / FILE if directory else None
        self._spaces = spaces
        self._by_name = dict(_read(self._file, spaces))
        self._taken = set(self._by_name.values())  # including those of deleted Services, which may be created again
        self._unkept: list[str] = []
        self._names_at_last_look = 0

    @property
    def may_have_stale_names(self) -> bool:
        """Whether there are enough new names since `forget_all_but` to make it worth another pass over all Services."""
        return len(self._by_name) > self._names_at_last_look + _STALE

    def of(self, name: str) -> int:
        """The first number of the name's range. The next call of `keep` saves it."""
        space = self._by_name.get(name)
        if space is None:
            space = int.from_bytes(blake2b(name.encode(), digest_size=3).digest()) % self._spaces
            while space in self._taken:
                space = (space + 1) % self._spaces
            self._by_name[name] = space
            self._taken.add(space)
            self._unkept.append(name)
        return space * SPACE

    def keep(self) -> None:
        """Save new numbers. Call it before the switch gets groups with them."""
        if self._file is None or not self._unkept:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.writelines(map(self._line, self._unkept))
            self._unkept.clear()
            self.problem = ""
        except OSError as error:
            self.problem = (
                f"{self._file}: group numbers cannot be kept: {error.strerror}; if the agent restarts now, connections "
                "to two Services may be exchanged for a moment: make room on the disk"
            )

    def forget_all_but(self, names: Collection[str]) -> None:
        """Remove the names of deleted Services from the file, once there are many. Their numbers are not reused."""
        self._names_at_last_look = len(self._by_name)
        if self._file is None or self._unkept or len(self._by_name) - len(names) <= _STALE:
            return
        self._by_name = {name: space for name, space in self._by_name.items() if name in names}
        self._names_at_last_look = len(self._by_name)
        with suppress(OSError):  # the longer file does no harm
            files.write(self._file, "".join(map(self._line, self._by_name)).encode(), durable=False, patience=0)

    def _line(self, name: str) -> str:
        return f"{self._by_name[name]} {name}\n"


def _read(file: Path | None, spaces: int) -> Iterator[tuple[str, int]]:
    """The names with numbers. A truncated or malformed line is ignored."""
    try:
        lines = file.read_text().splitlines(keepends=True) if file else []
    except (OSError, UnicodeDecodeError):
        lines = []
    taken: set[int] = set()
    for line in lines:
        number, _, name = line.partition(" ")
        if name.endswith("\n") and number.isdecimal() and (space := int(number)) < spaces and space not in taken:
            taken.add(space)
            yield name[:-1], space
