"""The command line: `tradi demo | fit | predict | bench | report | data`, one file per command.

Enters: command-line arguments. Leaves: tables on standard output, files in the `--out` folder.
Who may call it: no other room. It calls the rooms below and makes no decisions itself.
"""
