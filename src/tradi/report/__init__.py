"""The report: tables, figures and one page of both.

Enters: result files and the declarations beside them, or the numbers of a curve. Leaves: Markdown, HTML, figures.
Who may call it: the demo and the command line. It trains and evaluates nothing.
"""
