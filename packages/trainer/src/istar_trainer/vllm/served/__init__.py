"""What the interpreter that has vLLM runs; it may lack everything else of this repository."""
