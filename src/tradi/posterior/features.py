"""What a network makes of its inputs before the last linear layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.batches import Caller, as_loader, batches
from tradi.ensemble.copying import sharing, unwrap
from tradi.posterior.head import Head, find_head, watched
from tradi.posterior.rows import rows
from tradi.prediction.likelihood import Likelihood
from tradi.prediction.likelihoods import Classification


@torch.no_grad()
def penultimate(
    model: nn.Module, data: Any, *, likelihood: Likelihood | None = None, layer: str | None = None
) -> Tensor:
    """Inputs of the layer whose output is the logits, in eval mode; the model itself is left alone.

    Args:
        model: any network that ends in a linear layer.
        data: inputs (a tensor, an array, or a dict of them), or a loader, which is read once.
        likelihood: what outputs mean; `Classification()` by default.
        layer: name of the layer, where something follows it that is not a view of its output.

    Returns:
        (samples, inputs) in the order of the data; of pixels and tokens, a row for every position.

    Raises:
        ValueError: if no linear layer gives the logits, or there is no data.
    """
    model = sharing(unwrap(model)).eval()
    caller, head, found = Caller(model), None, []
    for inputs, target in batches(as_loader(data, "data"), "data", next(model.parameters())):
        args, kwargs = caller.arguments(inputs, target)
        head = head or find_head(model, args, kwargs, likelihood or Classification(), layer)
        found.append(_input_of(head, model, args, kwargs))
    return torch.cat(found)


def _input_of(head: Head, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    with watched({head.name: head.module}) as seen:
        model(*args, **kwargs)
    (found,) = rows(head.module, seen[head.name].input, seen[head.name].output)
    return found
