"""A ControlNet for the bundled model that draws what an edge image shows: its lessons, its training, its file."""
