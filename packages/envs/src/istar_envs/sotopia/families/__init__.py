"""The own checkable families: settings made from a seed, moves that bind, and what they are worth.

``bargaining``, ``division``, ``friends`` and ``scheduling`` each offer ``generate(seed) -> Setting``;
``moves`` reads and writes binding actions; ``outcome`` says how a dialogue ended for both seats.
"""
