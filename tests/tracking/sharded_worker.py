"""Run by test_sharded.py, in every process: what holds of a model that `fully_shard` shards, whatever the processes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as F

import tradi
from tradi.methods import SWAG


class Net(nn.Module):
    """Five rows, three rows and one: uneven shards, and empty ones."""

    unit: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(4, 5), nn.LayerNorm(5)
        self.gate, self.last = nn.Linear(5, 1), nn.Linear(5, 3)
        self.register_buffer("unit", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.norm(self.first(x)))
        return self.last(h * torch.sigmoid(self.gate(h)) * self.unit)


Batch = tuple[Tensor, Tensor]


def batches(steps: int) -> Iterator[Batch]:
    """The same on every process, of twelve samples."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        x = torch.randn(12, 4, generator=generator)
        yield x, x[:, :3].argmax(1)


def mine(batch: Batch) -> Batch:
    """This process's share of a batch."""
    size, rank = distributed.get_world_size(), distributed.get_rank()
    x, y = (part.chunk(size)[rank] for part in batch)
    return x, y


def mesh(*shape: int) -> DeviceMesh:
    shape = shape or (distributed.get_world_size(),)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])


def sharded(*shape: int, **options: Any) -> Net:
    model, options = Net(), options | {"mesh": mesh(*shape)}
    if options.pop("checkpointing", False):
        model.first = checkpoint_wrapper(model.first)  # type: ignore[assignment]
    fully_shard(model.first, **options)
    fully_shard(model, **options)
    return model


def whole(tensor: Any) -> Tensor:
    found: Tensor = tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    return found


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterator[Batch]) -> Iterator[None]:
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        yield


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """Steps [first, last) of the run."""
    for _ in steps_of(model, optimizer, (mine(batch) for batch in [*batches(last)][first:])):
        pass


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), 1e-2)


def gathered(state: Any) -> Any:
    """A state with whole tensors."""
    if isinstance(state, dict):
        return {name: gathered(value) for name, value in state.items()}
    return whole(state) if isinstance(state, Tensor) else state


def flat(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        return {n: leaf for key, value in state.items() for n, leaf in flat(value, f"{name}/{key}").items()}
    return {name: state}


def close(state: dict[str, Any], other: dict[str, Any], rtol: float = 2e-6, atol: float = 1e-9) -> None:
    """Compare states; of squared gradients by row the sums, as another number of processes has other rows."""
    ours, theirs = (
        {name: leaf for name, leaf in flat(gathered(one)).items() if "/fingerprint/" not in name}
        for one in (state, other)
    )
    assert ours.keys() == theirs.keys()
    for name, a in ours.items():
        b = theirs[name]
        if not isinstance(a, Tensor):
            assert a == b, (name, a, b)
        elif "/gradient/" in name:
            torch.testing.assert_close(a.sum(), b.sum(), rtol=max(rtol, 1e-5), atol=0, msg=name)
        else:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=name)


def equal(state: Any, other: Any) -> bool:
    """Bit for bit, what this process holds."""
    pairs = zip(flat(state).items(), flat(other).items(), strict=True)
    for (name, a), (other_name, b) in pairs:
        if isinstance(a, Tensor):
            a, b = (t.to_local() if hasattr(t, "to_local") else t for t in (a, b))
            if not torch.equal(a.nan_to_num(), b.nan_to_num()):
                return False
        elif a != b:
            return False
        assert name == other_name
    return True


def one_process(tracker_of: Callable[..., tradi.TRADI] = tradi.TRADI, steps: int = 6) -> tradi.TRADI:
    """The same run in one process, which sees whole batches."""
    model = Net()
    optimizer = adam(model)
    tracker = tracker_of(model, optimizer)
    for _ in steps_of(model, optimizer, batches(steps)):
        pass
    return tracker


def follows_its_weights(
    tracker_of: Callable[..., tradi.TRADI] = tradi.TRADI, *shape: int, accumulate: int = 1, **kind: Any
) -> None:
    """The state is, to rounding, that of a tracker in one process that is shown the same weights and gradients."""
    model, twin = sharded(*shape, **kind), Net()
    optimizer, still = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(twin.parameters(), 0.1)
    tracker, reference = tracker_of(model, optimizer), tracker_of(twin, still)
    numbers = [p.numel() for p in twin.parameters()]
    for batch in batches(5):
        optimizer.zero_grad()
        for i in range(accumulate):
            model.set_requires_gradient_sync(i + 1 == accumulate)  # type: ignore[operator]
            x, y = mine(batch)
            F.cross_entropy(model(x + i).float(), y).backward()
        optimizer.step()
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert own.grad is not None
            other.grad = whole(own.grad).to(other)
            other.data.copy_(whole(own) + 0.1 * other.grad)  # from where the step below leads to the same weights
        still.step()
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            other.data.copy_(whole(own))
    assert [p.numel() for p in model.parameters()] == numbers
    held = tracker.state_dict()
    ours, theirs = flat(gathered(held)), flat(reference.state_dict())
    renamed = {name.replace("_checkpoint_wrapped_module.", ""): value for name, value in ours.items()}
    close(renamed, theirs, rtol=1e-5, atol=1e-7)
    for saved in held["weights"].values():
        for name, mean in saved["mean"].items():
            parameter: Any = dict(model.named_parameters())[name]
            assert mean.placements == parameter.placements
            assert mean.to_local().shape == parameter.to_local().shape


def check_tracking(folder: Path) -> None:
    follows_its_weights()
    follows_its_weights(tradi.TRADI.paper)
    follows_its_weights(tradi.TRADI.released)
    follows_its_weights(accumulate=2)
    follows_its_weights(checkpointing=True)
    follows_its_weights(offload_policy=CPUOffloadPolicy(pin_memory=False))
    follows_its_weights(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    model = sharded()
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 0, 6)
    reference = one_process()
    close(tracker.state_dict(), reference.state_dict(), rtol=1e-4, atol=1e-6)
    assert repr(tracker) == repr(reference).replace("Net", "FSDPNet")


def check_errors(folder: Path) -> None:
    model = sharded()
    with pytest.raises(TypeError, match=r"needs all weights of a layer"):
        tradi.TRADI(model, adam(model), covariance=tradi.FullCovariance())
    with pytest.raises(TypeError, match="SWAG cannot follow"):
        SWAG(model, adam(model), every=1)
    with pytest.raises(TypeError, match=r"save tracker\.state_dict\(\) with torch\.distributed\.checkpoint"):
        pickle.dumps(tradi.TRADI(model, adam(model)))
    wide = nn.Linear(4, 4)
    fully_shard(wide, mesh=mesh(), shard_placement_fn=lambda p: Shard(p.ndim - 1))
    with pytest.raises(TypeError, match=r"weight has placements .*Shard\(0\)"):
        tradi.TRADI(wide, adam(wide))


def everything(model: nn.Module, optimizer: torch.optim.Optimizer, tracker: tradi.TRADI) -> dict[str, Any]:
    """What a checkpoint holds."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "tradi": tracker.state_dict()}


def resumed(path: Path, model: nn.Module) -> tuple[torch.optim.Optimizer, tradi.TRADI]:
    """A run that continues from a checkpoint; the tracker is loaded last, as the others call `step`."""
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    state = everything(model, optimizer, tracker)
    load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    tracker.load_state_dict(state["tradi"])
    return optimizer, tracker


def save_after_four(path: Path, model: nn.Module, data: Iterator[Batch]) -> tuple[torch.optim.Optimizer, tradi.TRADI]:
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    for _ in steps_of(model, optimizer, data):
        pass
    save(everything(model, optimizer, tracker), checkpoint_id=path)
    return optimizer, tracker


def check_resuming(folder: Path) -> None:
    """Killed after four steps and resumed by as many processes, a run continues bit for bit."""
    path, model = folder / f"of-{distributed.get_world_size()}", sharded()
    optimizer, tracker = save_after_four(path, model, map(mine, batches(4)))
    held = [value for value in flat(tracker.state_dict()["weights"]).values() if isinstance(value, Tensor)]
    assert all(hasattr(tensor, "to_local") for tensor in held)
    own = distributed.new_group(backend="gloo")  # as it communicates while training does
    state = {"tradi": tracker.state_dict()}
    saving: Any = async_save(state, checkpoint_id=folder / "async", process_group=own)
    train(model, optimizer, 4, 8)
    saving.result()
    again = sharded()
    optimizer, second = resumed(path, again)
    assert second.steps == 4
    kept = second.state_dict()
    train(again, optimizer, 4, 8)
    assert equal(second.state_dict(), tracker.state_dict())
    third = sharded()
    fresh = tradi.TRADI(third, adam(third))
    state = {"tradi": fresh.state_dict()}
    load(state, checkpoint_id=folder / "async")
    fresh.load_state_dict(state["tradi"])
    assert equal(fresh.state_dict(), kept)
    fresh.load_state_dict(gathered(kept))  # whole tensors, of which every process takes its part
    assert equal(fresh.state_dict(), kept)


def check_other_processes(folder: Path) -> None:
    """Checkpoints of one process and of two are loaded by two, and by four."""
    for name in ("of-1", "of-2"):
        model = sharded()
        optimizer, tracker = resumed(folder / name, model)
        train(model, optimizer, 4, 8)
        close(tracker.state_dict(), one_process(steps=8).state_dict(), rtol=1e-4, atol=1e-6)


COVARIANCES = {
    "independent": tradi.Independent(shrinkage=0.5),
    "waves": tradi.FourierFeatures(),
    "phases": tradi.FourierFeatures.released(),
    "activations": tradi.Activations(),
}


def inputs() -> Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(3))


def check_posterior(folder: Path) -> None:
    """One file, and for any number of processes the same members, bit for bit; the live network is left alone."""
    model = sharded()
    optimizer, tracker = resumed(folder / "of-2", model)
    output = model(inputs()).detach()  # which leaves the root's weights gathered
    posterior = tracker.posterior()
    before = {name: value.to_local().clone() for name, value in model.state_dict().items() if name != "unit"}
    posterior.save(folder / f"posterior-of-{distributed.get_world_size()}.safetensors")
    drawn = {}
    for name, covariance in COVARIANCES.items():
        one = posterior.with_covariance(covariance).rescaled(3.0)
        drawn[name] = gathered(one.draw(1, seed=2)), whole(one.sample(3, seed=2)(inputs()))
    if distributed.get_rank() == 0:
        torch.save(drawn, folder / f"drawn-by-{distributed.get_world_size()}.pt")
    assert model.training
    assert torch.equal(model(inputs()).detach(), output)
    after = {name: value.to_local() for name, value in model.state_dict().items() if name != "unit"}
    assert equal(before, after)
    mean = gathered(posterior.mean)
    data = [mine(batch) for batch in batches(3)]
    prediction = posterior.sample(2).predict(data, likelihood=tradi.likelihoods.Classification())
    assert prediction.probs.shape == (3 * len(data[0][0]), 3)
    model.eval()
    torch.testing.assert_close(posterior.final()(inputs())[0], model(inputs()).detach(), rtol=0, atol=0)
    model.train()
    train(model, optimizer, 4, 6)  # training continues, and the posterior stays what it was
    assert equal(gathered(posterior.mean), mean)
    assert not equal(gathered(tracker.posterior().mean), mean)
    assert equal(gathered(posterior.with_covariance(COVARIANCES["waves"]).rescaled(3.0).draw(1, 2)), drawn["waves"][0])
    assert repr(posterior).startswith("Posterior(49 weights in 3 layers")


def check_best(folder: Path) -> None:
    """Marked weights that are put back have the posterior that belongs to them; others are an error on all."""
    model = sharded()
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 0, 3)
    tracker.mark_best()
    marked = gathered(tracker.posterior().mean)
    live: list[Any] = [*model.parameters()]
    best = [own.to_local().clone() for own in live]
    train(model, optimizer, 3, 6)
    assert not equal(gathered(tracker.posterior().mean), marked)
    with torch.no_grad():
        for own, value in zip(live, best, strict=True):
            own.to_local().copy_(value)
    assert equal(gathered(tracker.posterior().mean), marked)
    with torch.no_grad():
        for own in live:
            own.to_local().mul_(2 if distributed.get_rank() else 1)
    with pytest.raises(RuntimeError, match="not those of the last step"):
        tracker.posterior()


def check_refusals(folder: Path) -> None:
    """What needs all weights in one process names the way there; problems of one process are errors on all."""
    model = sharded()
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 0, 2)
    posterior = tracker.posterior()
    for refused in (
        lambda: posterior.sample(2)[0],
        lambda: posterior.sample(2).save(folder / "members.safetensors"),
    ):
        with pytest.raises(RuntimeError, match=r"posterior\.save\(path\).*tradi\.load_posterior"):
            refused()
    with pytest.raises(OSError, match=r"missing|first process"):
        posterior.save(folder / "missing" / "posterior.safetensors")
    if distributed.get_rank() == 0:
        with torch.no_grad():
            weight: Any = model.first.weight
            weight.to_local()[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"first\.weight|another process"):
        tracker.posterior()
    wrapped = normed()
    wrapped[1] = checkpoint_wrapper(wrapped[1])
    fully_shard(wrapped, mesh=mesh())
    optimizer = adam(wrapped)
    tracker = tradi.TRADI(wrapped, optimizer)
    wrapped(inputs()).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="BatchNorm's statistics in a module that is wrapped"):
        tracker.posterior().sample(2)


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 3))


def check_statistics(folder: Path) -> None:
    """BatchNorm is refreshed on the parts of the data that all processes have, as by one process on the whole."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    model, data = normed(), [*batches(4)]
    fully_shard(model, mesh=mesh())
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    for _ in steps_of(model, optimizer, iter(data)):
        pass
    posterior = tracker.posterior().rescaled(30.0)
    before = [buffer.clone() for buffer in model.buffers()]
    parts = tradi.gathered(data[rank::size])
    ours = posterior.sample(3, seed=1, refresh=parts)(inputs())
    assert model.training
    assert all(map(torch.equal, before, model.buffers()))
    path = folder / f"normed-of-{size}.safetensors"
    posterior.save(path)
    distributed.barrier()
    one = tradi.load_posterior(path, normed()).sample(3, seed=1, refresh=data)
    torch.testing.assert_close(whole(ours), one(inputs()))
    stale = posterior.refreshing(data).sample(3, seed=1)
    torch.testing.assert_close(whole(stale(inputs())), one(inputs()))


def check_prior(folder: Path) -> None:
    """A prior, in memory or in a file, is added to what every process tracked of its part; a sharded one is refused."""
    data = [*batches(3)]
    earlier = one_process().posterior().condition(data)
    path = folder / f"prior-{distributed.get_rank()}-of-{distributed.get_world_size()}.safetensors"
    earlier.save(path)

    def tracked(prior: Any) -> Any:
        model = sharded()
        with torch.no_grad():
            for name, own in model.named_parameters():
                own.copy_(distribute_tensor(earlier.model.get_parameter(name), own.device_mesh, own.placements))  # type: ignore[attr-defined]
        optimizer = adam(model)
        tracker = tradi.TRADI(model, optimizer, prior=prior)
        train(model, optimizer, 0, 3)
        return tracker.posterior()

    alone = tracked(None)
    for prior in (earlier, path):
        ours = tracked(prior)
        sums = {name: own + earlier.variance[name] for name, own in gathered(alone.variance).items()}
        close(gathered(ours.variance), sums)
    later = folder / f"later-of-{distributed.get_world_size()}.safetensors"
    ours.save(later)
    distributed.barrier()
    before = tradi.load_posterior(later, Net()).layers[0].before
    assert before is not None
    assert torch.equal(before.second, earlier.layers[0].moments.second)  # type: ignore[union-attr]
    model = sharded()
    with pytest.raises(TypeError, match="a prior that is sharded over processes: save it, and pass the path"):
        tradi.TRADI(model, adam(model), prior=alone)
    part = Net()
    part.first.requires_grad_(False)
    optimizer = adam(part)
    tracker = tradi.TRADI(part, optimizer)
    for _ in steps_of(part, optimizer, batches(1)):
        pass
    tracker.posterior().save(path)
    with pytest.raises(ValueError, match="it leaves out frozen weights, and the model's are sharded: save with whole"):
        tradi.TRADI(model, adam(model), prior=path)


def check_two_dimensions(folder: Path) -> None:
    """Shards over one dimension of the mesh, and replicas over the other."""
    follows_its_weights(tradi.TRADI, 2, 2)
    model = sharded(2, 2)
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 0, 4)
    tracker.posterior().save(folder / "replicas.safetensors")


def main(folder: Path, rank: str, size: str, *checks: str) -> None:
    meeting = f"file://{folder}/meeting-of-{size}"
    distributed.init_process_group("gloo", meeting, timedelta(minutes=2), rank=int(rank), world_size=int(size))
    from tests.tracking import sharded_fitting  # which uses the networks and the data above

    for check in checks:
        (globals() | vars(sharded_fitting))[f"check_{check}"](folder)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
