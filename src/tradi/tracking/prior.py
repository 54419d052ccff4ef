"""What an earlier posterior says of the weights that a run begins with: transfer learning."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from os import PathLike

import torch
from torch import Tensor, nn

from tradi.ensemble.files import naming, read
from tradi.posterior.layers import Layer
from tradi.posterior.packing import unpacked_layers
from tradi.posterior.posterior import Posterior
from tradi.sharding import part_of, plain_name
from tradi.storage.tensors import digest
from tradi.tracking.selection import Weight

SHOWN = 5  # names in a message


class Prior:
    r"""The Gaussian that weights had before this run, of those that the run's model has too.

    A run moves every weight by a displacement with a mean and a variance of its own, which are tracked. What was not
    known of a weight before is not known of it afterwards, so the variances add:

    $$ \sigma^2 = \sigma_0^2 + \sigma^2_\text{run} $$

    The factor on the noise that the earlier posterior had is left out, since data of this run decides it again.

    Args:
        layers: of the earlier posterior.
        weights: that the run may track, frozen ones included, by name.
        names: of all weights that the earlier posterior knows.

    Raises:
        ValueError: if no weight has a name and a shape that the posterior knows.
    """

    def __init__(self, layers: Sequence[Layer], weights: Mapping[str, Weight], names: Collection[str]) -> None:
        means = {name: mean for layer in layers for name, mean in layer.mean.items()}
        variances = {name: variance for layer in layers for name, variance in layer.variance.items()}
        self.mean: dict[Weight, Tensor] = {}
        self._variance: dict[Weight, Tensor] = {}
        whole: dict[str, Tensor] = {}
        for name, weight in weights.items():
            plain = plain_name(name)
            if plain in means and means[plain].shape == weight.parameter.shape:
                pair = {"mean": means[plain].detach(), "variance": variances[plain].detach().clamp_min(0)}
                whole |= {f"{kind}/{plain}": values for kind, values in pair.items()}
                self.mean[weight], self._variance[weight] = (_part(own, weight) for own in pair.values())
        if not self.mean:
            raise ValueError(
                f"no weight has a name and a shape of the prior, which knows {_shown(sorted(names))}: the weights here "
                f"are {_shown([*weights])}"
            )
        known = {plain_name(weight.name) for weight in self.mean}
        self.fresh = [name for name, weight in weights.items() if weight not in self.mean]
        self.unused = sorted(set(names) - known)
        self.sha256 = digest(whole, {})
        matched = [layer for layer in layers if layer.weights.keys() <= known]
        self._covariance = {names: matrix for layer in matched for names, matrix in layer.covariance.items()}
        self.layers = {  # what else there is to know of them
            one.name: Layer(one.name, {}, {}, {}, moments=one.moments, reach=one.reach, before=one.before)
            for one in matched
        }
        if all(mean.ndim < 2 for mean in self.mean.values()) and any(mean.ndim > 1 for mean in means.values()):
            warnings.warn(
                f"only vectors match the prior, such as biases ({_shown([w.name for w in self.mean])}), and no matrix "
                "does: is it of another architecture?",
                stacklevel=4,
            )
        self._check_start()

    @staticmethod
    def of(source: Posterior | str | PathLike[str], model: nn.Module, weights: Mapping[str, Weight]) -> Prior:
        """The prior that a posterior is, or a file of one.

        Args:
            source: a posterior in memory, or the path of one that was saved.
            model: of this run. It has the frozen weights that a file leaves out; its head may be another one.
            weights: that the run may track.

        Raises:
            TypeError: if it is neither, or a posterior whose weights are sharded over processes.
            ValueError: if nothing matches, or the file is damaged or of other frozen weights.
            OSError: if there is no file.
        """
        if isinstance(source, Posterior):
            if any(layer.places for layer in source.layers):
                raise TypeError("a prior that is sharded over processes: save it, and pass the path of the file")
            return Prior(source.layers, weights, source.mean)
        if not isinstance(source, str | PathLike):
            raise TypeError(f"prior must be a posterior or the path of one, got {type(source).__name__}")
        packed = read(source, "a posterior", model)
        with naming(source):
            if len(packed) > 1:
                raise ValueError(f"it holds {len(packed)} runs, and a prior is of one")
            return Prior(unpacked_layers(packed[0], model), weights, packed[0][0]["mean"])

    def __str__(self) -> str:
        found = f"prior of {len(self.mean)} weight tensors"
        if self.fresh:
            found += f", {len(self.fresh)} start fresh ({_shown(self.fresh)})"
        if self.unused:
            found += f", {len(self.unused)} of the prior are not here ({_shown(self.unused)})"
        return found

    def knows(self, weight: Weight) -> bool:
        """Whether it says something of a weight."""
        return weight in self.mean and self.mean[weight].shape == weight.local.shape

    def second(self, weights: Sequence[Weight], like: Tensor) -> Tensor:
        """Variances of weights that are tracked together, or their covariance matrix; 0 where nothing is known.

        Args:
            weights: of one block, in order.
            like: what is tracked of them: variances in a row, or a matrix.
        """
        matrix = self._covariance.get(tuple(plain_name(weight.name) for weight in weights))
        if like.ndim == 2 and matrix is not None and matrix.shape == like.shape:
            return matrix.to(like)
        rows = [self._variance[w] if self.knows(w) else torch.zeros_like(w.local) for w in weights]
        row = torch.cat([own.reshape(-1).to(like) for own in rows])
        return row.diag() if like.ndim == 2 else row

    def _check_start(self) -> None:
        """Warn of layers that do not begin where the prior is: new ones, or somebody forgot to load the weights."""
        sizes: dict[str, tuple[float, float]] = {}  # of the difference, and of both, by layer
        for weight, mean in self.mean.items():
            own, layer = weight.local.detach().to(mean), plain_name(weight.name).rpartition(".")[0]
            apart, size = sizes.get(layer, (0.0, 0.0))
            apart += (own - mean).square().sum().item()
            sizes[layer] = apart, size + own.square().sum().item() + mean.square().sum().item()
        far = [layer or "the model itself" for layer, (apart, size) in sizes.items() if apart > size / 2]
        if far:
            warnings.warn(
                f"weights are far from the prior's mean, in {_shown(far)}: load the weights that the prior is of "
                "before training, or its variance is of another network; give a new layer a name of its own",
                stacklevel=5,
            )


def _part(values: Tensor, weight: Weight) -> Tensor:
    """What this process holds of it; a part of its own, so that the whole need not stay in memory."""
    part = part_of(values, weight.place)
    return part if weight.place is None else part.clone()


def _shown(names: Sequence[str]) -> str:
    return f"{', '.join(names[:SHOWN])[:300]}{' and others' if len(names) > SHOWN else ''}"
