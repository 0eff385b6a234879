"""The two headlines of the field as measurements: CIFAR-10 from scratch and 224-pixel photographs with a frozen base.

models.py    the same network behind uint8 images and behind floats
training.py  epochs with the time each step waits for its batch; a real step, or one of a fixed length
recipe.py    what a recipe is, and how it is measured
__main__.py  `python -m benchmarks.recipes`
"""
