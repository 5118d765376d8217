"""The examples for the model in the box: each draws its own pictures and says how it is trained."""
