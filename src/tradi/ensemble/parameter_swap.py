"""Run a module with other parameters and buffers than its own, at no cost per call."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tradi._torch import module_tables

Table = dict[str, Any]  # a module's parameters or buffers by their names in it


class ParameterSwap:
    """Where a module keeps its parameters and buffers, looked up once.

    It does what `torch.func.functional_call` does, which looks everything up at every call and takes longer over
    that than a small network over its forward pass. The module must keep its structure.

    Args:
        module: whose tensors are to be swapped.
    """

    def __init__(self, module: nn.Module) -> None:
        first: dict[Tensor, str] = {}  # tied tensors go by their first name
        self._tables: list[tuple[Table, dict[str, str], Table]] = []
        for prefix, owner in module.named_modules():
            for table in module_tables(owner):
                own = {key: tensor for key, tensor in table.items() if tensor is not None}
                names = {key: first.setdefault(t, f"{prefix}.{key}" if prefix else key) for key, t in own.items()}
                if own:
                    self._tables.append((table, names, own))

    def with_state(self, state: dict[str, Tensor]) -> SwappedIn:
        """A context manager that puts tensors in by name, as often as it is entered."""
        return SwappedIn(
            [
                (table, names, {key: state.get(name, own[key]) for key, name in names.items()}, own)
                for table, names, own in self._tables
            ]
        )


class SwappedIn:
    """Tensors that take the place of a module's own inside a `with`, which may be entered again and again.

    Args:
        places: a module's table of tensors, their names in the model, what to put in, and what belongs there.
    """

    def __init__(self, places: list[tuple[Table, dict[str, str], Table, Table]]) -> None:
        self._places = places

    def __enter__(self) -> None:
        for table, _, swapped, _ in self._places:
            table.update(swapped)

    def __exit__(self, *exception: object) -> None:
        for table, _, swapped, own in self._places:
            swapped.update(table)  # what the module made of them, for the next time
            table.update(own)

    @property
    def state(self) -> dict[str, Tensor]:
        """All of them by their names in the model, as the module left them."""
        return {name: swapped[key] for _, names, swapped, _ in self._places for key, name in names.items()}
