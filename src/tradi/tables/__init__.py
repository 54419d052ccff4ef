"""Networks for tables of numbers, with defaults that need no tuning.

Enters: a matrix or a data frame, and a target. Leaves: an ensemble, predictions for every row, a folder with the model.
Who may call it: `integrations/sklearn.py` and the commands `tradi fit` and `tradi predict`.
"""
