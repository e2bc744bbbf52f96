"""What Penstock raises: one class for each kind of error, all of them an Error."""

from __future__ import annotations

from typing import NoReturn


class Error(Exception):
    """An error of the library.

    str() has everything: operation, object, wanted, got, cause and advice, in one or more lines. The attributes have
    the parts by themselves; they are empty where the error has none.

    operation: what was done, "FileTransfers::wait".
    object: a file, a tensor, a key of the configuration, an argument.
    reason: the cause in one sentence.
    wanted, got: what was expected, and what there was.
    where: where the setting can be changed.
    advice: what can be done about it.
    notes: more lines.
    offset: in the file that is the object; None, if there is none.
    os_error: the errno that caused it; 0, if none did.
    """

    def __init__(self, message: str, *, operation: str = "", object: str = "", reason: str = "", wanted: str = "",
                 got: str = "", where: str = "", advice: str = "", notes: tuple[str, ...] = (),
                 offset: int | None = None, os_error: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.operation = operation
        self.object = object
        self.reason = reason
        self.wanted = wanted
        self.got = got
        self.where = where
        self.advice = advice
        self.notes = notes
        self.offset = offset
        self.os_error = os_error
        if isinstance(self, OSError):
            self.errno: int | None = os_error or None
            self.filename: str | None = object or None

    def __str__(self) -> str:
        return self.message

    def __reduce__(self):
        return _rebuild, (type(self), self.message), self.__dict__


def _rebuild(kind, message):
    error = kind.__new__(kind, message)
    Error.__init__(error, message)
    return error


class InvalidArgument(Error, ValueError):
    """Misuse by the caller: the call changed nothing."""


class InvalidConfig(Error, ValueError):
    """The configuration cannot be used as written."""


class Unsupported(Error):
    """Understood, but not available on this machine, or not implemented."""


class WouldBlock(Error):
    """There is no free slot now: repeat the call."""


class BudgetTooSmall(Error):
    """Nothing in flight can ever free the requested bytes."""


class NoSpace(Error, OSError):
    """The file system is full or too small, or host memory is."""


class PermissionDenied(Error, PermissionError):
    """The operating system refused access."""


class NotFound(Error, FileNotFoundError):
    """The named object does not exist."""


class AlreadyExists(Error, FileExistsError):
    """The named object exists and must not."""


class InUse(Error):
    """Another process, or another owner in this process, uses the named object."""


class IoFailed(Error, OSError):
    """The device or the kernel reported a failure."""


class Truncated(Error, OSError):
    """The file is shorter than the bytes that it must contain."""


class Corrupted(Error, OSError):
    """Bytes that were read back differ from those that were written."""


class NonFinite(Error):
    """A value that must be finite is not."""


class DeadlineExceeded(Error, TimeoutError):
    """An operation did not complete in the time allowed."""


class PeerFailed(Error):
    """Another rank failed or left."""


class Interrupted(Error):
    """A rank abandoned the training step."""


class FailedState(Error):
    """An earlier error made this object unusable, or it was closed."""


# By the numbers of penstock_code, which are never reused.
_kinds = (Error, InvalidArgument, InvalidConfig, Unsupported, WouldBlock, BudgetTooSmall, NoSpace, PermissionDenied,
          NotFound, AlreadyExists, InUse, IoFailed, Truncated, Corrupted, NonFinite, DeadlineExceeded, PeerFailed,
          Interrupted, FailedState)


def exception_of(code: int, message: str, **fields) -> Error:
    """The exception for an error of the library; an Error, for a code of a later version."""
    return (_kinds[code] if code < len(_kinds) else Error)(message, **fields)


def refuse(operation: str, reason: str, what: str, *, wanted: str = "", got: str = "", advice: str = "",
           kind: type[Error] = InvalidArgument) -> NoReturn:
    """Raises the error of an argument that is found wrong before the library is called."""
    message = f"{reason}: {what}" + (f", wanted {wanted}" if wanted else "") + (f", got {got}" if got else "")
    message += f" [{operation}]" + (f"\n  try     {advice}" if advice else "")
    raise kind(message, operation=operation, object=what, reason=reason, wanted=wanted, got=got, advice=advice)
