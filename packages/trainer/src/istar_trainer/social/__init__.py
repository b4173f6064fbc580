"""How well a policy does in social episodes: ``istar eval --env istar/Sotopia-v0``.

Published protocols and own scenario families alike; needs no run configuration.
"""
