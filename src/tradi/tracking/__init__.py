"""Following a training run from outside: which weights to track, and the optimizer hook.

Enters: the user's model and optimizers. Leaves: a call of `observe` after every step that moved a tracked weight.
Who may call it: methods that follow training; `Tracker` lists what they implement and what they are given for it.
"""
