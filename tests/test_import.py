"""What importing tradi costs and needs, each seen in a process of its own."""

from __future__ import annotations

import subprocess
import sys

CORE = {"torch", "numpy", "safetensors"}
OPTIONAL = ("rich", "matplotlib", "sklearn", "torchmetrics", "joblib", "PIL", "ray", "lightning", "transformers")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_the_core_works_where_no_extra_is_installed() -> None:
    hidden = f"import sys\nfor name in {OPTIONAL!r}: sys.modules[name] = None\n"
    use = """
import torch, tradi
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
tracker = tradi.TRADI(model, optimizer)
model(torch.randn(4, 2)).sum().backward()
optimizer.step()
ensemble = tracker.posterior().sample(3).refresh([torch.randn(4, 2)])
print(tuple(tradi.ClassPrediction(logits=ensemble(torch.randn(5, 2))).probs.shape))
"""
    assert run(hidden + use).strip() == "(5, 2)"


def test_a_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['sklearn'] = None; sys.modules['sklearn.datasets'] = None\n"
    code += "from tradi.data import digits\ntry: digits()\nexcept ImportError as e: print(e)"
    assert "pip install 'tradi[metrics]'" in run(code)


def test_importing_tradi_loads_nothing_beyond_torch_numpy_and_safetensors() -> None:
    # Counting modules instead of seconds: what makes an import slow is what it imports.
    listing = "import sys, torch, numpy, safetensors.torch; before = set(sys.modules)\nimport tradi\n"
    listing += "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('tradi')))"
    extra = run(listing).split()
    heavy = [name for name in extra if not name.startswith(("torch.", "numpy.", "safetensors")) and "." not in name]
    assert set(heavy) <= set(sys.stdlib_module_names)
    assert len(extra) < 120, extra
