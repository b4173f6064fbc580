"""Many processes as one run: who they are, what each of them does, and what stops them when one is lost."""
