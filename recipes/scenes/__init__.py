"""The model in the box: captioned pictures drawn with Pillow, and the training of a small SD1-layout model on them."""
