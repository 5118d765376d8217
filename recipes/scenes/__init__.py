"""The bundled model: captioned images drawn with Pillow, and the training of a small SD1-layout model on them."""
