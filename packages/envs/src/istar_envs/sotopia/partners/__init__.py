"""Who sits on the other chair: scripted negotiators, recordings, and policies to compare with.

A partner is anything with a ``name`` and ``act(view) -> Action``.
"""
