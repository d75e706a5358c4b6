"""A small LLM serving stack to record: API server, engine, one worker a GPU. See README.md."""
