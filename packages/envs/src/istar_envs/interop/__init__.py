"""Our environments for the clients and trainers of other libraries, which import only what they need."""
