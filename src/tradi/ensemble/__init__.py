"""Many networks in the room of one: lazy, seeded members that share a module.

Enters: a module, a function from a member's number to its weights, loaders. Leaves: outputs, predictions, files.
Who may call it: posterior and everything above; it knows nothing of how weights were tracked or drawn.
"""
