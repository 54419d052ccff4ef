"""What outputs mean: one likelihood per task, and the prediction objects that they give.

Enters: outputs of a network, (members, batch, ...), and targets. Leaves: log-likelihoods and predictions.
Who may call it: every room above; it knows nothing of models, loaders or weights.
"""
