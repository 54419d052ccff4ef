"""From training to a prediction on scikit-learn's digits: python examples/digits.py (needs the extra `demo`)."""

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
