"""Two common benchmarks of training: CIFAR-10 from scratch, and 224-pixel photographs with a frozen base.

models.py    the same network for uint8 images and for floats
training.py  epochs with the waiting time of each step; a real step, or a simulated one of fixed duration
recipe.py    recipes and their measurement
__main__.py  `python -m benchmarks.recipes`
"""
