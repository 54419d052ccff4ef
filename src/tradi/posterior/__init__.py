"""The distribution of a network's weights: layers, covariances, random numbers, the scale, files.

Enters: tracked means and variances by parameter name. Leaves: ensembles, and safetensors files.
Who may call it: tracking and everything above; it knows nothing of optimizers or training.
"""
