"""`modules.textual_inversion`: the embeddings that there are. They are trained by the program's Train tab."""
