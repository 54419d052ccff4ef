"""The command line: `tradi demo | bench | report | data`, one file per command.

Enters: words. Leaves: tables on standard output, files where `--out` says.
Who may call it: nobody; it calls the rooms below and decides nothing itself.
"""
