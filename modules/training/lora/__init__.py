"""Training a LoRA on captioned pictures, for any checkpoint in the SD1 layout; and two examples drawn by code."""
