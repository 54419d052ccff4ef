"""The Kalman filter: gains, equations, options and state. Pure mathematics on tensors: no modules, no hooks.

Enters: weights after an optimizer step, and their gradients where the equations need them. Leaves: means and variances.
Who may call it: methods that track weights.
"""
