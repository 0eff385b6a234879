"""The pipeline as a whole: configuration, the one graph, a thin runner an orchestrator, and the command line."""
