"""The gate, which stops a pipeline when its dataset crosses a limit."""
