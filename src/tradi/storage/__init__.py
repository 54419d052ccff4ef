"""Files, whatever is in them.

What enters are bytes and JSON that may be anything; what leaves are whole files, and values whose types were checked.
Every room that keeps something on disk calls it.
"""
