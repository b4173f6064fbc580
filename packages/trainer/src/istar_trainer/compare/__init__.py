"""Methods × seeds: runs in child processes, and what their results can and cannot tell."""
