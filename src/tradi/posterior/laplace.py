"""Laplace's approximation of the last layer of a classifier, at the trained network's features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tradi.ensemble.batches import chosen, samples_in
from tradi.posterior.conditioning import Conditioning, Draw, Replay
from tradi.posterior.head import Head, State, is_resized
from tradi.posterior.linear_regression import highest
from tradi.posterior.randomness import Stream
from tradi.posterior.rows import at_nearest, chosen_positions, positions
from tradi.prediction.likelihood import Likelihood

SPREADS = tuple(2.0 ** (k / 2) for k in range(-4, 7))  # r that are tried, besides 0: a quarter to eight
JUDGES = 20  # heads that an r is judged by
FEW = 5  # rows: with about so many, noise must be far better than none to be chosen
ROWS = 5_000  # samples, pixels or tokens that the curvature is measured on, at the most
MAX_BYTES = 1 << 26  # of a full curvature matrix: 2,896 weights; larger heads get Kronecker factors
WIDEST = 4096  # outputs of a head, at the most: the eigenvectors of a matrix over more of them take minutes


@dataclass(frozen=True, eq=False)
class Rows:
    """Features, logits and labels of the head, row by row: a row is a sample, a pixel or a token.

    Args:
        features: (rows, inputs), with a 1 for the bias.
        logits: (rows, outputs), of the trained head.
        labels: (rows,) of classes, or (rows, outputs) of labels that are each present or absent.
        weight: rows of the whole data for each of these.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor
    weight: float

    @property
    def independent(self) -> bool:
        """Whether every output is a label of its own."""
        return self.labels.ndim == 2

    @property
    def curvature(self) -> Tensor:
        """Second derivatives of the negative log-likelihood by the logits, (rows, outputs[, outputs]), in float64."""
        logits = self.logits.double()
        if self.independent:  # 0 for labels that are not known
            return logits.sigmoid() * (-logits).sigmoid() * (self.labels >= 0)
        p = logits.softmax(1)
        return p.diag_embed() - p[:, :, None] * p[:, None]

    @property
    def mean_curvature(self) -> Tensor:
        """The average of `curvature`, (outputs[, outputs]), which is never held row by row."""
        if self.independent:
            return self.curvature.mean(0)
        p = self.logits.double().softmax(1)
        return p.mean(0).diag() - p.T @ p / len(p)

    def losses(self, logits: Tensor) -> Tensor:
        """Negative log-likelihood of every row under the members of an ensemble: logits (members, rows, outputs)."""
        if self.independent:
            signs = torch.where(self.labels == 1, 1.0, -1.0).to(logits)
            known = (self.labels >= 0).to(logits)
            mean = F.logsigmoid(signs * logits).logsumexp(0) - math.log(len(logits))
            return -(mean * known).sum(1)
        found = logits.log_softmax(2).gather(2, self.labels[None, :, None].expand(len(logits), -1, 1))[..., 0]
        return math.log(len(logits)) - found.logsumexp(0)


def head_rows(replay: Replay, head: Head, likelihood: Likelihood, most: int = ROWS, name: str = "training") -> Rows:
    """Rows of the head at the trained weights, spread over all samples, without those whose label does not count.

    Of every sample as many positions are taken as make `most` rows in all: the same random ones for all samples of a
    batch, by its number. Where the network resizes the head's map, rows are the positions of the map as the head gives
    it, each with the label nearest to it. The name is that of the data, for an error.

    Raises:
        ValueError: if no label counts, or features are not finite.
    """
    features, labels = [], []
    known = [_known(_labels(target, head, likelihood)) for _, target in replay.data]
    weight = replay.weight * sum(int(rows.sum()) for rows in known)
    replay = _spread_out(replay, [rows.any(1) for rows in known], most)
    size, share = sum(map(samples_in, replay.data)), 1.0  # rows of the head for every label
    for number, (output, target, seen) in zip(replay.turns, replay.run({}, [head.name]), strict=True):
        logits = likelihood.linear(output)
        here = seen[head.name].picked(logits)
        own = _labels(target, head, likelihood).to(here.output.device)
        if is_resized(here.output, logits):
            own = at_nearest(own, logits.shape[2:], here.output.shape[2:])
            share = here.output.shape[2:].numel() / logits.shape[2:].numel()
        if own.shape[1] != positions(head.module, here.output):
            raise ValueError(
                f"the head gives {positions(head.module, here.output)} positions of a sample, and targets have "
                f"{own.shape[1]}: pass layer= with the layer whose outputs the targets are about"
            )
        if own.ndim == 2 and (own >= head.outputs).any():
            raise ValueError(
                f"class targets must be below {head.outputs}, got {own.max().item()}; negative ones are ignored"
            )
        at = chosen_positions(own.shape[1], max(1, most // size), number).sort().values
        keep = _known(own)[:, at].reshape(-1)
        features.append(head.features(here, at)[keep])
        labels.append(own[:, at].flatten(0, 1)[keep])
    every = replay.in_order(features)
    step = max(1, -(-len(every) // most))
    phi = every[::step]
    if not phi.isfinite().all():
        raise ValueError(f"features of the {name} data are NaN or infinite: look for NaN in its inputs")
    if not len(phi):
        raise ValueError("no label of this data counts: there is nothing to condition on")
    logits = phi @ head.theta.to(phi).T
    return Rows(phi, logits, replay.in_order(labels)[::step], weight * share / len(phi))


def _labels(target: Any, head: Head, likelihood: Likelihood) -> Tensor:
    """Labels by row, (samples, positions[, outputs]), negative where one does not count."""
    own = likelihood.row_targets(target)
    return head.by_position(own) if own.ndim == 3 else own.long()


def _known(labels: Tensor) -> Tensor:
    """Rows that count, (samples, positions)."""
    return labels >= 0 if labels.ndim == 2 else (labels >= 0).any(2)


def _spread_out(replay: Replay, labelled: list[Tensor], most: int) -> Replay:
    """Every k-th of the samples that have a label, where no others will have a row: these need not run."""
    step, before = -(-sum(int(own.sum()) for own in labelled) // most), 0
    if step < 2:
        return replay
    data = []
    for batch, own in zip(replay.data, labelled, strict=True):
        places = own.nonzero()[-before % step :: step, 0]
        before += int(own.sum())
        if len(places):
            data.append(chosen(batch, places))
    return replay.over(data)


class LaplaceHead(Conditioning):
    r"""The last layer of every member is drawn from $\mathcal N(\hat\theta, r^2 (H + \lambda I)^{-1})$.

    H is the Gauss-Newton matrix of the training loss in the head's weights, $\sum_i \Lambda_i \otimes \phi_i
    \phi_i^\top$ with $\Lambda = \operatorname{diag}(p) - p p^\top$; for wide heads it is replaced by Kronecker factors,
    $n \bar\Lambda \otimes \overline{\phi\phi^\top}$. The prior precision $\lambda$ has the highest evidence under these
    factors.

    Args:
        head: the layer.
        theta: its trained weights, (outputs, inputs).
        root: draws $(H + \lambda I)^{-1/2} z$.
        spread: r.
        precision: lambda.
    """

    def __init__(self, head: Head, theta: Tensor, root: Root, precision: float, spread: float = 1.0) -> None:
        self.head, self.theta, self.root, self.precision, self.spread = head, theta, root, precision, spread

    @staticmethod
    def of(replay: Replay, head: Head, likelihood: Likelihood) -> LaplaceHead:
        """Measure the curvature on the training data.

        Raises:
            ValueError: if the head is too wide.
        """
        if head.outputs > WIDEST:
            raise ValueError(
                f"layer {head.name!r} has {head.outputs:,} outputs, and conditioning takes a matrix over all of them, "
                f"{WIDEST:,} at the most: choose the scale alone, with choose_scale(validation)"
            )
        rows = head_rows(replay, head, likelihood)
        theta = head.theta.double()
        kronecker = Kronecker.of(rows, rows.mean_curvature)
        precision = kronecker.most_probable_precision(theta)
        blocks = theta.shape[0] if rows.independent else 1
        size = theta.numel() // blocks
        if 8 * blocks * size * size <= MAX_BYTES:
            return LaplaceHead(head, theta, Full.of(rows, rows.curvature, precision), precision)
        return LaplaceHead(head, theta, replace(kronecker, precision=precision), precision)

    def __str__(self) -> str:
        return f"last layer conditioned by Laplace (its noise times {self.spread:g})"

    def with_spread(self, spread: float) -> LaplaceHead:
        """The same with another factor on the noise; 0 leaves the head as trained."""
        return LaplaceHead(self.head, self.theta, self.root, self.precision, spread)

    def noise(self, seed: int, member: int) -> Tensor:
        """A member's deviation from the trained head at r = 1, (outputs, inputs)."""
        theta = self.theta
        z = Stream(seed, member, f"{self.head.name}/theta").normal(0, theta.numel(), theta.device)
        return self.root(z.to(theta.dtype).view_as(theta))

    def weights(self, draw: Draw, scale: float, seed: int, member: int) -> State:
        theta = self.theta + self.spread * self.noise(seed, member) if self.spread else self.theta
        return draw(scale) | self.head.with_theta(theta)

    def moved(self, rows: Rows, seed: int) -> Tensor:
        """What the noise of some members adds to the logits at r = 1, (members, rows, outputs)."""
        noise = torch.stack([self.noise(seed, i) for i in range(JUDGES)]).to(rows.features)
        return torch.einsum("rd,mcd->mrc", rows.features, noise)


def best_spread(heads: Sequence[LaplaceHead], rows: Sequence[Rows], seed: int) -> tuple[float, float]:
    r"""The r with the lowest NLL on validation rows, $\bar l + (1 + 20/n)\, 5 s_d / n$: few rows favour none.

    Nothing is run for it but the heads themselves.

    Args:
        heads: one per training run; the runs' predictions are averaged.
        rows: the same validation rows as the network of each run sees them.
        seed: of the noise.

    Returns:
        r, and by how much it lowers the NLL.
    """
    losses = rows[0].losses
    moved = [head.moved(own, seed) for head, own in zip(heads, rows, strict=True)]
    quiet = losses(torch.stack([own.logits for own in rows]))
    price = {0.0: quiet.mean().item()}
    for spread in SPREADS:
        loud = torch.cat([own.logits + spread * change for own, change in zip(rows, moved, strict=True)])
        excess = losses(loud) - quiet
        size = len(excess)
        handicap = (1 + 20 / size) * FEW * excess.std().item() / size if size > 1 else math.inf
        price[spread] = price[0.0] + excess.mean().item() + handicap
    best = min(price, key=price.__getitem__)
    return best, price[0.0] - price[best]


@dataclass(frozen=True, eq=False)
class Full:
    """Cholesky factors of H + lambda I: one for all outputs together, or one for each where these are independent.

    Args:
        factors: (blocks, size, size), lower triangular.
    """

    factors: Tensor

    @staticmethod
    def of(rows: Rows, curvature: Tensor, precision: float) -> Full:
        """Factorise, given every row's curvature in the logits, (rows, outputs[, outputs])."""
        phi = rows.features.double()
        D = phi.shape[1]
        if curvature.ndim == 2:
            H = torch.stack([_gram(phi, column) for column in curvature.T])
        else:
            C = curvature.shape[1]
            H = phi.new_zeros(1, C, D, C, D)
            for a in range(C - 1):
                for b in range(a + 1):
                    H[0, a, :, b] = H[0, b, :, a] = _gram(phi, curvature[:, a, b])
            # A number added to all logits changes nothing: the blocks of every row and column add up to zero.
            H[0, -1] = -H[0].sum(0)
            H[0, :, :, -1] = -H[0].sum(2)
            H = H.reshape(1, C * D, C * D)
        H *= rows.weight
        H.diagonal(dim1=1, dim2=2).add_(precision)
        return Full(torch.linalg.cholesky(H).contiguous())

    def __call__(self, z: Tensor) -> Tensor:
        flat = z.reshape(len(self.factors), -1, 1)
        return torch.linalg.solve_triangular(self.factors.mT, flat, upper=True).view_as(z)


@dataclass(frozen=True, eq=False)
class Kronecker:
    """Eigenvalues and vectors of the two factors of H.

    Args:
        inputs: of the features' second moment, summed over all rows: (D,) and (D, D).
        outputs: of the average curvature in the logits: (C,) and (C, C).
        precision: lambda.
    """

    inputs: tuple[Tensor, Tensor]
    outputs: tuple[Tensor, Tensor]
    precision: float = 1.0

    @staticmethod
    def of(rows: Rows, curvature: Tensor) -> Kronecker:
        """From the rows and their average curvature, (C,) where outputs are independent, else (C, C)."""
        phi = rows.features.double()
        return Kronecker(
            _eigen(rows.weight * phi.T @ phi), _eigen(curvature.diag() if curvature.ndim == 1 else curvature)
        )

    def most_probable_precision(self, theta: Tensor) -> float:
        r"""The $\lambda$ with the highest evidence.

        $$ \log Z = \tfrac P2 \log\lambda - \tfrac\lambda2 |\theta|^2 - \tfrac12 \log|H + \lambda I| $$
        """
        eigenvalues = (self.outputs[0][:, None] * self.inputs[0]).flatten()
        square, count = theta.square().sum().item(), theta.numel()

        def evidence(log_precision: float) -> float:
            precision = math.exp(log_precision)
            determinant = (eigenvalues + precision).log().sum().item()
            return 0.5 * (count * log_precision - precision * square - determinant)

        middle = math.log(count / max(square, 1e-300))
        return math.exp(highest(evidence, middle - 20, middle + 20))

    def __call__(self, z: Tensor) -> Tensor:
        (a, U), (g, V) = self.inputs, self.outputs
        return V @ (z / (g[:, None] * a + self.precision).sqrt()) @ U.T


Root = Full | Kronecker  # their tensors are contiguous, as they are in a file: sums are rounded alike after loading


def _gram(phi: Tensor, share: Tensor) -> Tensor:
    """Sum of share phi phi^T over the rows; of what is there twice, a quarter is not computed."""
    half = phi.shape[1] // 2
    left, right = phi.tensor_split([half], 1)
    weighted = phi * share[:, None]
    upper = left.T @ weighted
    return torch.cat([upper, torch.cat([upper[:, half:].T, right.T @ weighted[:, half:]], 1)])


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return values.clamp_min(0), vectors.contiguous()
