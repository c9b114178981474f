"""One module an engine: how it is set up, and what one side of it does in a worker process."""
