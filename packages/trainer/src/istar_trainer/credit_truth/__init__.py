"""How true each step's credit is: recorded steps with their exact or estimated advantages.

Not here: the credits themselves (``credits/``); nothing in this package trains.
"""
