"""What can go wrong with a request, as opposed to what differs between two arms.

Each error is one line for the user: what failed, with which value, and what to do next. The command line prints
the line and exits with :attr:`DifftestError.exit_code`; no traceback is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from difftest.result import RunResult


class DifftestError(Exception):
    """A request that cannot be carried out: usage or tool error."""

    exit_code = 2


class UsageError(DifftestError):
    """The request contradicts itself or names something that does not exist. Change the command."""


class TreeError(DifftestError):
    """A tree cannot be opened or read: an unknown revision, a corrupt wheel, a missing folder."""


class CaptureError(DifftestError):
    """A capture or a case file is damaged or does not say what it should. The message names the file and the fault.

    Attributes:
        fault: the message without what to do.
        advice: what to do.
    """

    def __init__(self, fault: str, advice: str = "take a whole copy of it, or record it again") -> None:
        super().__init__(fault)
        self.fault = fault
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.fault}; {self.advice}"


class NothingCompared(DifftestError):
    """The request is sound, but nothing was there to compare; zero compared is never green."""

    exit_code = 3


class NotWritten(DifftestError):
    """What was found could not all be written, as on a full disk. Make room, or name another place.

    Attributes:
        result: what was found, for the reports that can be written.
    """

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class LiftError(Exception):
    """A symbol cannot be lifted. Becomes the reason of an `unmeasured` target, not the end of a run.

    Attributes:
        chain: the names that led to the failure, outermost first.
    """

    def __init__(self, message: str, chain: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.chain = chain

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} (reached by {' -> '.join(self.chain)})" if self.chain else message


class MissingSymbol(LiftError):
    """A case asks an arm for a symbol that its tree does not have; the case is `unmeasured: api-change` there."""


class ApiChange(Exception):
    """An arm asks for an argument that the case does not carry; the target is `unmeasured: api-change` there."""
