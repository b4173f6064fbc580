"""How far the verdicts of a judge can be trusted: numbers, attacks and a report."""
