"""The errors that a user can cause or cure. The CLI prints their text and exits; it never shows a traceback."""


class MoebenchError(Exception):
    """Something the user must know, said in one paragraph: what was asked, what was found, what to do."""

    exit_code = 3


class UsageError(MoebenchError):
    """A mistake in what the user gave: a flag, a matrix, a report, a run folder."""

    exit_code = 2
