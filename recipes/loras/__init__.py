"""The examples for the bundled model: each draws its own images and says how it is trained."""
