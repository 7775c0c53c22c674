"""What ``fedmom.run`` and its like return: runs with their numbers, model and figure."""

import contextlib
import functools
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from rich.console import Console

from fedmom.api import trained_model
from fedmom.api.live_progress import finish, finish_all
from fedmom.core.arguments import checked, checked_class
from fedmom.core.errors import FedMomError
from fedmom.core.files import check_file, inner_folder, user_place
from fedmom.core.types import LOWER_IS_BETTER, UNRANKED, Params
from fedmom.core.validation import Between, Seed
from fedmom.data.given import conformed
from fedmom.data.schema import Schema
from fedmom.experiments import decided, provenance, results
from fedmom.experiments.build import Experiment
from fedmom.experiments.execute import warn
from fedmom.experiments.folder import RunFolder
from fedmom.experiments.observers import Observer
from fedmom.experiments.results import Group, Result, as_groups, target
from fedmom.reports import curves, differences, drawing, result_tables
from fedmom.reports.charts import Grid
from fedmom.training.evaluation import loss_per_client, per_client
from fedmom.training.loop import model_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Image


class _Results:
    """What a run and several runs have in common."""

    path: Path

    def _by_name(self) -> dict[str, Result]:
        raise NotImplementedError

    def _finish(self, console: Console, **how: Any) -> None:
        raise NotImplementedError

    @checked
    def resume(
        self,
        *,
        progress: bool = True,
        callbacks: Sequence[Observer] = (),
        accept_changes: bool = False,
        runtime: str | None = None,
    ) -> Self:
        """Run until the last round; the result is the same as without the stop.

        Several runs are side by side. One that fails does not stop the others.

        Args:
            progress: Show progress bars.
            callbacks: As for ``fedmom.run``.
            accept_changes: Resume although data or settings have changed since the start.
            runtime: Another runtime than that of the settings, this time.

        Returns:
            The same object, with the new results.
        """
        how = {"callbacks": callbacks, "accept_changes": accept_changes, "runtime": runtime}
        self._finish(Console(quiet=not progress), **how)
        return self

    def plot(self) -> "Image":
        """Return a matplotlib figure of the evaluations, which a notebook shows.

        Several seeds are one curve with its interval.
        """
        return _image(as_groups(self._by_name()))

    @checked
    def report(self, out: str | Path | None = None) -> Path:
        """Write the page about the results.

        Args:
            out: The page's file; by default report.html in the folder.

        Returns:
            The page's file.
        """
        return write_report(
            [self.path], user_place(out, "out") if out else self.path / "report.html"
        )

    def _repr_html_(self) -> str:
        groups = as_groups(self._by_name())
        image = _content(_image(groups), "svg").decode().partition("<svg")
        made = ((group.label, decided.parts(group.runs[0].settings())) for group in groups)
        told = "".join(f"<p>{html.escape(f'{name}: {of}')}</p>" for name, of in made if of)
        return f"{_html_table(result_tables.grid(groups, target(groups)))}{told}<svg{image[2]}"


@checked_class
class Run(_Results):
    """One run: its folder, its numbers and its model.

    ``fedmom.run`` and ``fedmom.load`` make one.

    Args:
        path: The run's folder.
        build: Returns the run's parts: model, data, algorithm. It is called once something has to
            be computed.

    Examples:
        >>> import tempfile, fedmom
        >>> folder = tempfile.mkdtemp()
        >>> run = fedmom.run("synthetic:clients=4", rounds=2, out=folder, progress=False)
        >>> run.status, run.predict(np.zeros((3, 60))).shape
        ('finished', (3,))
    """

    def __init__(self, path: Path, build: Callable[[], Experiment]) -> None:
        self.path, self._build = path, build

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The run's parts, which are built when they are needed."""
        return self._build()

    @functools.cached_property
    def result(self) -> Result:
        """The run's settings and logs, as lists of rows."""
        return results.read(self.path)

    @property
    def status(self) -> str:
        """``finished``, ``diverged``, ``stopped`` or ``unfinished``."""
        return self.result.status

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, by the names that they have on the command line."""
        return self.result.config.model_dump(by_alias=True, exclude_none=True)

    @property
    def evals(self) -> "pd.DataFrame":
        """One row per evaluation and split: the mean of every metric, and percentiles."""
        lists = (LOWER_IS_BETTER, UNRANKED)
        rows = [{k: v for k, v in row.items() if k not in lists} for row in self.result.evals]
        return _pandas().DataFrame(rows)

    @property
    def rounds(self) -> "pd.DataFrame":
        """One row per round: cohort, loss, norm of the aggregate, seconds, bytes, metrics."""
        rows = [dict(row) for row in self.result.rounds]
        for row in rows:
            row.pop("world", None)
        return _pandas().DataFrame([row | row.pop("metrics", {}) for row in rows])

    def clients(self) -> "pd.DataFrame":
        """Evaluate the model on all test samples of every client.

        Returns:
            One row per client: its name, samples, rounds it was asked in, and test metrics.
        """
        data = self.experiment.data
        asked = [client for row in self.result.rounds for client in row["cohort"]]
        columns = {
            "client": list(data.users),
            "train_samples": data.train.size,
            "rounds_asked": np.bincount(np.array(asked, np.int64), minlength=data.clients),
        }
        frame = _pandas().DataFrame(columns)
        if data.test_users is not None:
            return frame
        return frame.assign(test_samples=data.test.size).join(self._test_metrics())

    @functools.cached_property
    def params(self) -> Params:
        """The model's parameters after the last round, with those that were frozen."""
        return self.experiment.workload.merged(self._trained)

    @functools.cached_property
    def _trained(self) -> Params:
        """The parameters that are sent and aggregated."""
        checkpoint = RunFolder.open(self.path).restore(self.experiment.start())
        if checkpoint is None:
            raise FedMomError(f"{self.path} has no checkpoint yet: no round is done.")
        return model_of(self.experiment.workload, checkpoint.state)

    @functools.cached_property
    def schema(self) -> Schema:
        """What the model was trained on: inputs with their columns and scaling, and labels."""
        return provenance.trained_on(self.path, self.experiment.data, warn)

    def outputs(self, x: Any, *, tokenizer: Any = None) -> np.ndarray[Any, Any]:
        """Return the outputs of the model for inputs: logits for classes, numbers for a regression.

        Args:
            x: Inputs, one per row, of the shape of the training data's; for a model of text, also
                a list of strings.
            tokenizer: For strings, that of the training data; another one is refused.
        """
        return trained_model.outputs(self, x, tokenizer)

    def predict(self, x: Any, *, tokenizer: Any = None) -> np.ndarray[Any, Any]:
        """Return predictions: the most likely class of every input, or a regression's numbers.

        Args:
            x: Inputs, as for ``outputs``.
            tokenizer: As for ``outputs``.
        """
        return trained_model.predicted(self.schema, self.outputs(x, tokenizer=tokenizer))

    @checked
    def sample(
        self,
        prompt: str = "\n",
        *,
        length: Annotated[int, Between(1, 1_000_000)] = 400,
        temperature: Annotated[float, Between(0, 100)] = 0.7,
        seed: Seed = 0,
    ) -> str:
        """Return text that the run's character model has written.

        Args:
            prompt: How the text begins.
            length: Characters to write.
            temperature: Below 1, likely characters become likelier; 0 takes the likeliest.
            seed: The seed of the draw.
        """
        return trained_model.write(self, prompt, length, temperature, seed)

    @checked
    def export(
        self,
        folder: str | Path | None = None,
        *,
        onnx_batch: Annotated[int, Between(1, 65_536)] | None = None,
    ) -> Path:
        """Write the model as a safetensors file, with a model card and the settings.

        Args:
            folder: A new folder; by default ``export`` in the run's folder.
            onnx_batch: Also write an ONNX file, for ``onnx_batch`` inputs in a call.

        Returns:
            The folder.
        """
        path = user_place(folder, "folder") if folder else inner_folder(self.path / "export")
        trained_model.write_files(self, path, onnx_batch)
        return path

    @checked
    def to_torch(self, module: Any) -> Any:
        """Load the trained weights and buffers into a PyTorch module.

        Args:
            module: A module like the one that was given as the model. Its types and devices stay.

        Returns:
            The same module.

        Raises:
            FedMomError: It has other parameters or buffers than the run's model.
        """
        from fedmom.models.torch.weights import load

        return load(module, self.params)

    def _by_name(self) -> dict[str, Result]:
        return {self.result.label: self.result}

    def _finish(self, console: Console, **how: Any) -> None:
        self._forget()
        self.result = finish(self, console, **how)

    def _forget(self) -> None:
        """Forget what was read before the run is resumed."""
        for name in ("result", "params", "_trained"):
            self.__dict__.pop(name, None)

    def _test_metrics(self) -> "pd.DataFrame":
        workload, experiment = self.experiment.workload, self.experiment
        data = conformed(workload.data, self.schema)
        if data is not workload.data:  # its columns are in another order by now
            experiment = replace(experiment, workload=replace(workload, data=data))
        with contextlib.closing(experiment.runtime()) as runtime:
            if "test" not in runtime.splits:
                return _pandas().DataFrame()
            scores = runtime.evaluate(self._trained, "test")
        found = {"loss": loss_per_client(scores)[0]}
        found |= {metric.name: per_client(metric, scores)[0] for metric in scores.metrics}
        has = np.flatnonzero(self.experiment.data.test.size)
        return _pandas().DataFrame(found, index=has, dtype=float).add_prefix("test_")

    def __repr__(self) -> str:
        config = self.result.config
        place = f"{self.result.done} of {config.rounds} rounds"
        of = decided.parts(self.result.settings())
        made = f" ({of})" if of else ""
        return f"<Run {self.path}: {self.result.label}{made}, {self.status}, {place}>"


@checked_class
class Runs(_Results, Mapping[str, Run]):
    """Several runs by name: a comparison or a sweep.

    ``fedmom.compare``, ``fedmom.sweep`` and ``fedmom.load`` make one.

    Args:
        path: Their folder.
        runs: The runs, by name.

    Examples:
        >>> import tempfile, fedmom
        >>> runs = fedmom.compare(
        ...     ["fedavg", "fedmom"],
        ...     data="synthetic:clients=4",
        ...     rounds=2,
        ...     out=tempfile.mkdtemp(),
        ...     progress=False,
        ... )
        >>> list(runs), runs["fedmom"].status
        (['fedavg', 'fedmom'], 'finished')
    """

    def __init__(self, path: Path, runs: Mapping[str, Run]) -> None:
        self.path, self._runs = path, dict(runs)

    def __getitem__(self, name: str) -> Run:
        return self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def evals(self) -> "pd.DataFrame":
        """The evaluations of all runs, with a column ``run``."""
        return _together({name: run.evals for name, run in self.items()})

    @property
    def rounds(self) -> "pd.DataFrame":
        """The rounds of all runs, with a column ``run``."""
        return _together({name: run.rounds for name, run in self.items()})

    @property
    def findings(self) -> "pd.DataFrame":
        """One row per pair of algorithms and measure: their difference, paired by seed.

        Columns are the mean difference, its 95 % interval, p corrected by Holm's method for all
        pairs, and the finding: ahead, behind, equal, not settled, or not enough seeds. It is empty
        with one seed.
        """
        rows = [
            row
            for family in differences.families(as_groups(self._by_name()))
            for row in differences.records(family)
        ]
        return _pandas().DataFrame(rows, columns=differences.RECORD)

    @property
    def table(self) -> "pd.DataFrame":
        """One row per run: the settings that differ, and the last evaluation of every split."""
        settings = {name: run.result.settings() for name, run in self.items()}
        _, different = results.common_settings(list(settings.values()))
        rows = {
            name: {key: run.settings.get(key) for key in different}
            | {"seed": run.settings["seed"], "status": run.status}
            | _last(run.result)
            for name, run in self.items()
        }
        return _pandas().DataFrame.from_dict(rows, orient="index")

    def _by_name(self) -> dict[str, Result]:
        return {name: run.result for name, run in self.items()}

    def _finish(self, console: Console, **how: Any) -> None:
        for run in self.values():
            run._forget()
        found, errors = finish_all(self, console, **how)
        for name, result in found.items():
            self[name].result = result
        for error in errors.values():
            raise error

    def __repr__(self) -> str:
        return f"<Runs {self.path}: {', '.join(self)}>"


def write_report(folders: Sequence[Path], path: Path, goal: float | None = None) -> Path:
    """Write the page about the runs in folders; return its path."""
    check_file(path, "out", "report.html")
    from fedmom.reports import run_page, sweep_page

    return run_page.write(sweep_page.of_folders(folders, results.find(folders), goal), path)


def _last(result: Result) -> dict[str, Any]:
    """Return the numbers of the last evaluation, as ``test_loss`` and so on."""
    last = {row["split"]: row for row in result.evals}
    return {
        f"{split}_{name}": row[name]
        for split, row in last.items()
        for name in ("loss", *results.metrics_of(row))
    }


def _together(frames: Mapping[str, Any]) -> Any:
    named = [frame.assign(run=name) for name, frame in frames.items()]
    return _pandas().concat(named, ignore_index=True)


def _image(groups: Sequence[Group]) -> "Image":
    image = drawing.draw(curves.evaluations(groups))
    # Notebooks ask for this. They would show the figure by itself if pyplot had been used only.
    image._repr_png_ = functools.partial(_content, image, "png")  # type: ignore[attr-defined]
    return image


def _content(image: "Image", kind: str) -> bytes:
    return drawing.image_bytes(image, format=kind, dpi=150)


def _html_table(grid: Grid) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in grid.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in grid.rows
    )
    return f"<table><caption>{html.escape(grid.title)}</caption><tr>{head}</tr>{rows}</table>"


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise FedMomError(
            "DataFrames need an extra: pip install 'fedmom[pandas]'. Without it, run.result.evals"
            " and run.result.rounds are lists of rows."
        ) from None
    return pd
