"""Our own answers to calls of torch that do more than compute."""
