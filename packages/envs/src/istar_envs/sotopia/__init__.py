"""SOTOPIA: two people with private goals talk, and a judge or a verifier says how far each goal was reached.

Scenarios come from the own checkable families or from a folder of official files, never from this package.
"""
