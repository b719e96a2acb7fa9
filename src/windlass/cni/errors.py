"""The errors of CNI requests, with their codes."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Codes up to 99 are those of the CNI specification; codes from 100 on are those of Windlass."""

    INCOMPATIBLE_VERSION = 1
    UNSUPPORTED_FIELD = 2
    UNKNOWN_CONTAINER = 3
    INVALID_ENVIRONMENT = 4
    IO_FAILURE = 5
    UNDECODABLE = 6
    INVALID_CONFIG = 7
    TRY_AGAIN_LATER = 11
    NOT_AVAILABLE = 50
    NO_FREE_ADDRESS = 100
    ADDRESS_REFUSED = 101
    ADDRESSES_FAILED = 102
    LINK_FAILED = 103
    PORT_FAILED = 104
    FLOWS_FAILED = 105
    SECOND_INTERFACE = 106
    NAME_TAKEN = 107
    ATTACHMENT_WRONG = 108
    NOT_ALL_REMOVED = 109
    INTERNAL = 999  # as in the reference implementation


class RequestError(Exception):
    """Becomes the CNI error of the reply. `details` says what to do, or what else is known."""

    def __init__(self, code: Code, msg: str, details: str = "") -> None:
        super().__init__(f"{msg}; {details}" if details else msg)
        self.code = code
        self.msg = msg
        self.details = details

    def with_detail(self, sentence: str) -> RequestError:
        """The same error with one more sentence in its details."""
        before = f"{self.details.removesuffix('.')}. " if self.details else ""
        return RequestError(self.code, self.msg, before + sentence)
