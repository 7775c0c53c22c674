"""The one exception a user's mistake can raise."""


class FedMomError(ValueError):
    """A sentence for the user: it names the value, what is allowed and what to do.

    The command line prints it without a traceback; library code lets it pass.
    """
