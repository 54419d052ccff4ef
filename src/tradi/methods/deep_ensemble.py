"""Deep Ensembles (Lakshminarayanan et al., 2017), of networks or of tracked runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.copying import tensors_in
from tradi.ensemble.ensemble import Ensemble
from tradi.ensemble.files import check_same_architecture, model_tensors, naming, read, write
from tradi.extras import require
from tradi.methods.single_network import SingleNetwork
from tradi.posterior.fitting import SearchOptions
from tradi.posterior.posterior import Posterior, load_posterior, scaled_together
from tradi.prediction.likelihoods import Likelihood
from tradi.progress import track
from tradi.tracking.tracker import Tracker

Run = nn.Module | Posterior
Fit = Callable[[nn.Module], Posterior | nn.Module | None]


class DeepEnsemble:
    """Several training runs of one architecture from different initial weights.

    A plain network is one member. With posteriors ("multi-TRADI"), member i is drawn from run i modulo the number of
    runs, so there can be any number of members.

    Args:
        runs: trained networks, which are copied, or posteriors.

    Raises:
        TypeError: if runs are no list of these.
        ValueError: if there are no runs, or their architectures differ.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        given: Any = runs
        one = isinstance(given, nn.Module) and not isinstance(given, nn.ModuleList)
        if one or isinstance(given, Posterior | Tracker | str):
            raise TypeError(f"runs must be a list of networks or posteriors, got {type(given).__name__}: pass [run]")
        self.runs = [_as_run(run) for run in runs]
        if not self.runs:
            raise ValueError("a deep ensemble needs at least one run")
        for number, run in enumerate(self.runs[1:], 1):
            check_same_architecture(model_tensors(run.model), model_tensors(self.runs[0].model), f"run {number}")
            if repr(run.model) != repr(self.runs[0].model):  # the same weights in different layers
                raise ValueError(
                    f"run {number} has a different architecture from run 0: {run.model!r} instead of "
                    f"{self.runs[0].model!r}; train all runs with the same one"
                )

    def __repr__(self) -> str:
        alike = {repr(run) for run in self.runs}
        runs = next(iter(alike)) if len(alike) == 1 else ", ".join(map(repr, self.runs))
        return f"DeepEnsemble({len(self.runs)} runs{', each' if len(alike) == 1 < len(self.runs) else ''}: {runs})"

    def sample(
        self,
        members: int | None = None,
        seed: int = 0,
        *,
        refresh: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
    ) -> Ensemble:
        """An ensemble of the runs' networks, by default one member per run. See `Posterior.sample`.

        Args:
            members: their number; by default that of the runs.
            seed: a member is a function of the seed and of its number.
            refresh: training batches for BatchNorm's statistics, if other than those that were given before.
            likelihood: what outputs mean, if it is not known yet.

        Returns:
            the ensemble; member i is of run i modulo the number of runs.

        Raises:
            ValueError: if there are more members than runs, and some run is a plain network, or runs were conditioned
                in different ways.
        """
        seed, members = operator.index(seed), operator.index(len(self.runs) if members is None else members)
        if members > len(self.runs) and not all(run.has_noise for run in self.runs):
            raise ValueError(
                f"cannot sample {members} members from {len(self.runs)} runs: a plain network is only one member, "
                "so train more runs or track them"
            )

        runs = self.runs if refresh is None else [run.reconditioned(refresh) for run in self.runs]
        first, modules = runs[0], [run.model if run.conditioning is None else run.architecture() for run in runs]
        _check_conditioned_alike(runs, modules)
        # Everything in a run's own module, since all members run in the first run's.
        trained = [tensors_in(module) for module in modules]
        return Ensemble(
            first.architecture(),
            partial(_drawn, trained, runs, seed),
            members,
            trained=trained,
            moved=any(run.moved for run in runs),
            refresh=first.refresh if refresh is None else refresh,
            likelihood=likelihood or first.likelihood,
        )

    def fit(
        self,
        train: Iterable[Any],
        validation: Iterable[Any] | None = None,
        *,
        likelihood: Likelihood | None = None,
        layer: str | None = None,
        temperature: bool = False,
        passes: int | None = None,
        seed: int = 0,
    ) -> DeepEnsemble:
        """Condition every run on the training data, then choose one scale for the members of all runs together.

        Runs already disagree, so that together they admit less noise than each by itself: the noise of heads, the
        scale, the temperature and, for numbers, the noise factor are judged by the NLL of all runs' members together.
        For labels, networks without any noise are a plain Deep Ensemble, and are taken if nothing else is as good.
        Arguments are those of `Posterior.fit`.

        Returns:
            other runs, fitted; these stay as they are.

        Raises:
            TypeError, ValueError: as `Posterior.fit` does.
        """
        conditioned = [run.condition(train, likelihood=likelihood, layer=layer) for run in self.runs]
        options = SearchOptions(temperature=temperature, passes=passes, seed=seed)
        return DeepEnsemble(scaled_together(conditioned, validation, options))

    def condition(
        self, train: Iterable[Any], *, likelihood: Likelihood | None = None, layer: str | None = None
    ) -> DeepEnsemble:
        """Condition every run on the training data: see `Posterior.condition`.

        Args:
            train: training batches.
            likelihood: what outputs mean, if it cannot be inferred.
            layer: name of the last linear layer, if it cannot be found.

        Returns:
            other runs, conditioned; these stay as they are.
        """
        return DeepEnsemble([run.condition(train, likelihood=likelihood, layer=layer) for run in self.runs])

    def choose_scale(
        self,
        validation: Iterable[Any],
        *,
        refresh: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
        members: int = 5,
        tolerance: float = 0.001,
        temperature: bool = False,
        passes: int | None = None,
        seed: int = 0,
    ) -> DeepEnsemble:
        """One scale for the members of all runs together, as loud as validation data admits.

        Arguments are those of `Posterior.choose_scale`.

        Returns:
            a new method, whose runs all have the scale; this one is unchanged.
        """
        runs = self.runs if refresh is None else [run.refreshing(refresh) for run in self.runs]
        options = SearchOptions(members, tolerance, temperature, passes, seed)
        return DeepEnsemble(scaled_together(runs, validation, options, likelihood))

    def save(self, path: str | PathLike[str], *, whole: bool = False) -> None:
        """Write all runs to one safetensors file; `whole` as in `Posterior.save`.

        Args:
            path: of the file; it appears whole or not at all.
            whole: whether frozen weights are written too.

        Raises:
            ValueError: if runs differ in frozen weights, which only a whole file holds.
        """
        parts = [run.packed(whole) for run in self.runs]
        if any(about["frozen"] != parts[0][1]["frozen"] for _, about in parts):
            raise ValueError("runs differ in their frozen weights, which the file would leave out: pass whole=True")
        write(path, "a posterior", parts)

    @classmethod
    def load(cls, path: str | PathLike[str], model: nn.Module) -> DeepEnsemble:
        """Read saved runs; `model` gives the architecture.

        Args:
            path: of the file.
            model: a network of the architecture that was saved, with its frozen weights if the file leaves them out.

        Returns:
            the runs that were saved.

        Raises:
            ValueError, OSError: as `load_posterior` does.
        """
        runs = read(path, "a posterior", model)
        with naming(path):
            return cls([Posterior.unpacked(packed, model) for packed in runs])

    @classmethod
    def train(
        cls,
        make_model: Callable[[], nn.Module],
        fit: Fit,
        seeds: Sequence[int] = range(5),
        *,
        folder: str | PathLike[str] | None = None,
        workers: int = 1,
    ) -> DeepEnsemble:
        """Train one run per seed.

        Args:
            make_model: returns a fresh network; called after torch is seeded.
            fit: trains the network it is given; may return a posterior of the run, or another network, to keep instead.
            seeds: torch's seed for each run, set before `make_model` is called.
            folder: where each finished run is saved; runs found there are loaded, not trained again.
            workers: number of processes to train in (more than 1 needs `tradi[parallel]`).

        Returns:
            of each run what `fit` returned, or the network that it trained, in the order of the seeds.

        Raises:
            ValueError: if two seeds are equal, or a file in `folder` cannot be loaded.
            RuntimeError: if a run fails.
        """
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds must differ, or runs would be copies of each other, got {list(seeds)}")
        place = None if folder is None else Path(folder)
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
        jobs = [(make_model, fit, seed, place and place / f"run-{seed}.safetensors") for seed in seeds]
        if workers == 1:
            return cls([_run(*job) for job in track(jobs, "training an ensemble", len(jobs))])
        joblib = require("joblib", "parallel")
        parallel = joblib.Parallel(n_jobs=workers, return_as="generator")
        runs = parallel(joblib.delayed(_run)(*job) for job in jobs)
        return cls(list(track(runs, "training an ensemble", len(jobs))))


def _as_run(run: Any) -> Posterior:
    if isinstance(run, Tracker):
        raise TypeError(f"a {type(run).__name__} tracker is not a run: pass its posterior, tracker.posterior()")
    if not isinstance(run, Posterior | nn.Module):
        raise TypeError(f"runs must be networks or posteriors, got {type(run).__name__}")
    return run if isinstance(run, Posterior) else SingleNetwork(run)


def _check_conditioned_alike(runs: Sequence[Posterior], modules: Sequence[nn.Module]) -> None:
    kinds = [(type(run.conditioning), type(module)) for run, module in zip(runs, modules, strict=True)]
    for number, run in enumerate(runs[1:], 1):
        if kinds[number] != kinds[0]:  # the last layer or all weights, of numbers, are of one type
            first, other = (one.conditioning or "not conditioned" for one in (runs[0], run))
            raise ValueError(
                f"runs were conditioned in different ways, run 0: {first}, run {number}: {other}; fit them together, "
                "DeepEnsemble(posteriors).fit(train, validation)"
            )


def _drawn(trained: list[dict[str, Tensor]], runs: list[Posterior], seed: int, member: int) -> dict[str, Tensor]:
    number = member % len(runs)
    return trained[number] | runs[number].draw(member, seed)


def _run(make_model: Callable[[], nn.Module], fit: Fit, seed: int, file: Path | None) -> Posterior:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make_model()
        if file is not None and file.exists():
            try:
                return load_posterior(file, model)
            except ValueError as error:
                raise ValueError(
                    f"{file} cannot be resumed from: {error}; delete it to train this run again"
                ) from error
        try:
            run = _as_posterior(fit(model), model)
        except Exception as error:
            raise RuntimeError(f"the run with seed {seed} failed: {error}") from error
        if file is not None:
            run.save(file, whole=True)  # what is frozen may have been loaded by `fit`
        return run


def _as_posterior(result: Posterior | nn.Module | None, model: nn.Module) -> Posterior:
    if isinstance(result, Posterior):
        return result
    if result is None or isinstance(result, nn.Module):
        return SingleNetwork(model if result is None else result)
    raise TypeError(f"fit must return a posterior, a network or None, got {type(result).__name__}")
