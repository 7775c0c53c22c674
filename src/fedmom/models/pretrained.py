"""Weights of a file as a model's first parameters."""

import hashlib
from typing import Any

import jax

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.files import read_file, user_path
from fedmom.core.tensor_files import unpacked
from fedmom.models.base import Model, first_form
from fedmom.models.variables import listed, parameter_names


@checked
def pretrained(model: Model, *, file: str, sha256: str = "") -> Model:
    """Start from the weights of a safetensors file, such as ``fedmom export`` writes.

    Args:
        model: The model, such as ``fedmom.model(net, data)``.
        file: A file with an array for every parameter, under the parameter's name. Each machine
            that trains needs it, at this path.
        sha256: The file's checksum, which it must have. Settings of a run get it by themselves.

    Returns:
        The model; its first parameters are those of the file, whatever the seed.

    Raises:
        FedMomError: The file has other parameters than the model.

    Examples:
        >>> import fedmom, jax, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> run = fedmom.run("synthetic:clients=4", rounds=2, out=folder, progress=False)
        >>> again = pretrained(run.experiment.model, file=f"{run.export()}/model.safetensors")
        >>> found = again.init(jax.random.key(7))[0]["w"]
        >>> bool((found == run.params[0]["w"]).all())
        True
    """
    if model.adapted is not None:
        raise FedMomError("pretrained loads whole weights, so it comes before lora and frozen.")
    if sha256 and sha256 != (found := checksum(file)):
        raise FedMomError(
            f"{file} has the checksum {found}, not {sha256}: it holds other weights than those that"
            " the run was started with. Restore it."
        )
    form = first_form(model)
    tensors = _tensors(file)
    names = parameter_names(form)
    if lost := [name for name in names if name not in tensors]:
        raise FedMomError(
            f"{file} has no parameter {lost[0]} ({len(lost)} of {len(names)} are missing). It has:"
            f" {listed(tensors)}."
        )
    if more := tensors.keys() - set(names):
        raise FedMomError(
            f"{file} has {min(more)}, which the model has not. Its parameters are: {listed(names)}."
        )
    for name, leaf in zip(names, jax.tree.leaves(form), strict=True):
        if tensors[name].shape != leaf.shape:
            raise FedMomError(
                f"{name} has shape {tensors[name].shape} in {file}, and {leaf.shape} in the model."
            )
    leaves = [tensors[n].astype(f.dtype) for n, f in zip(names, jax.tree.leaves(form), strict=True)]
    weights = jax.tree.unflatten(jax.tree.structure(form), leaves)
    return model._replace(init=lambda _key: jax.device_put(weights))


def checksum(file: str) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(_content(file)).hexdigest()


def _content(file: str) -> bytes:
    try:
        return read_file(user_path(file, "file"), most=None)
    except OSError as error:
        raise FedMomError(f"{file} cannot be read: {error.strerror}.") from None


def _tensors(file: str) -> dict[str, Any]:
    content = _content(file)
    try:
        return unpacked(content)
    except ValueError as error:
        raise FedMomError(f"{file} is not a safetensors file: {error}.") from None
