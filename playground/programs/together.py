"""Several programs that start and end together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playground.programs.process import Program


@dataclass(frozen=True)
class Programs:
    """As a context they are started in this order, and ended in the opposite one."""

    each: Sequence[Program]

    def __enter__(self) -> Programs:
        try:
            for program in self.each:
                program.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self.each):
            program.terminate()
            program.wait()

    def check(self) -> None:
        """Raises `ProgramFailed` if one of them has ended."""
        for program in self.each:
            program.check()

    def tails(self) -> str:
        """The last lines of their logs."""
        return "\n".join(f"{program.name}: {program.tail()}" for program in self.each)
