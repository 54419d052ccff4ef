"""From training to a prediction on scikit-learn's digits: python examples/digits.py (needs the extra `demo`).

Ends in `digits.png`: the known and unknown test images that the members disagree about most.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

import tradi

torch.manual_seed(0)
data = tradi.data.digits()  # eight of the ten digits
x, y = data.train
model = tradi.models.mlp(64, [100, 100], data.classes, batchnorm=True)
optimizer = torch.optim.Adam(model.parameters(), 3e-3)

tracker = tradi.TRADI(model, optimizer)
for _ in range(60):
    for batch in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()

posterior = tracker.posterior().fit([data.train], [data.validation])
ensemble = posterior.sample(20, seed=0)
print("as they are:", ensemble.predict(data.test[0]))
print("inverted:   ", ensemble.predict(x.max() + x.min() - data.test[0]))

images = torch.cat([data.test[0], data.ood["unknown digits"]])
information = ensemble.predict(images).mutual_information
order = information.argsort()
figure, axes = plt.subplots(2, 10, figsize=(10, 2.8), layout="constrained")
for ax, place in zip(axes.flat, [*order[:10], *order[-10:]], strict=True):
    ax.imshow(images[place].view(8, 8).numpy(), cmap="gray_r")
    ax.set_title(f"{information[place]:.3f}", fontsize=8)
    ax.axis("off")
figure.suptitle("Mutual information in nats: the lowest above, the highest below", fontsize=10)
figure.savefig("digits.png", dpi=150)
