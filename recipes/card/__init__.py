"""The bundled model and all that belongs to it, trained on a card in minutes: what `recipes.scenes` does in hours."""
