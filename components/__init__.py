"""The TFX components of Feedline. Each folder holds one: `component` (its wiring) and `executor` (its work)."""
