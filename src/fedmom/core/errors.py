"""Exceptions raised by FedMom."""


class FedMomError(ValueError):
    """A sentence for the user: it names the value, what is allowed and what to do.

    The command line prints it without a traceback; library code lets it pass.

    Examples:
        >>> raise FedMomError("momentum 2 is not in [0, 1). The paper uses 0.9.")
        Traceback (most recent call last):
        fedmom.core.errors.FedMomError: momentum 2 is not in [0, 1). The paper uses 0.9.
    """


class DivergedError(FedMomError):
    """Training diverged: a value is NaN or infinite. A run folder records it in ``stopped.json``.

    Examples:
        >>> try:
        ...     raise DivergedError("Round 3: the update is not finite.")
        ... except FedMomError as error:
        ...     print(error)
        Round 3: the update is not finite.
    """


class ServerDivergedError(DivergedError):
    """The server's step diverged, although all replies were finite.

    Args:
        round_: The round, counted from 0.
        cause: What made the step so large, as far as it is known.

    Examples:
        >>> ServerDivergedError(6, "server-lr 1e+38").round
        6
    """

    def __init__(self, round_: int, cause: str = "") -> None:
        self.round = round_
        with_ = f", with {cause}," if cause else ""
        super().__init__(
            f"Round {round_ + 1}: the server's step{with_} made a model or server state that is not"
            " finite, or too large to be squared. The model before it is kept. Use a smaller"
            " --server-lr or --lr."
        )


class BadReplyError(FedMomError):
    """A client's reply cannot be used, and the run was told to stop at the first one.

    Examples:
        >>> try:
        ...     raise BadReplyError("The reply of client 4 cannot be used: it answered twice.")
        ... except FedMomError as error:
        ...     print(error)
        The reply of client 4 cannot be used: it answered twice.
    """
