"""Sokoban: rules, levels, solvers, pictures and the environments made of them."""
