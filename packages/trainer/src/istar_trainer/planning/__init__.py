"""``istar plan``: what a configuration needs in memory and work, said before anything starts."""
