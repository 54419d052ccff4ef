"""Other libraries' tools, each an extra that is imported where it is used.

Enters: what these libraries hand out, their models, trainers and arrays. Leaves: estimators and callbacks of theirs.
Who may call it: users and the command line; no other room.
"""
