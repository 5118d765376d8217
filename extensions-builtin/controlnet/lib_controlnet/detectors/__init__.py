"""Modules that need weights: networks that make a control map of an image, read weights-only from the user's files."""
