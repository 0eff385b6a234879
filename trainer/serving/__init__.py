"""Export of models whose input is image files, preprocessing with TFX Transform, and prediction."""
