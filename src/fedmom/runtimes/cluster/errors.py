"""What Ray raises: for an actor that was lost, and for an error in its work."""

from functools import lru_cache

from fedmom.runtimes.cluster.connect import package


@lru_cache
def losses() -> tuple[type[Exception], ...]:
    """Return what is raised where an actor, its machine or what it sent was lost."""
    known = package().exceptions
    return (
        known.RayActorError,
        known.NodeDiedError,
        known.ObjectLostError,
        known.OutOfMemoryError,
        known.WorkerCrashedError,
    )


def unwrapped(error: Exception) -> Exception:
    """Return the error that an actor's work raised, as if it had been raised here.

    Ray wraps it into one whose text is the actor's traceback; that goes along as a note.
    """
    cause = getattr(error, "cause", None)
    if not isinstance(cause, Exception):
        return error
    cause.add_note(f"On an actor of the cluster:\n{error}")
    return cause
