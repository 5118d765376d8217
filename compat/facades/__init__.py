"""Names that extensions of the reference UI import, over our objects. `modules.NAME` is found in the file NAME.py here
(`compat.finder`). A name that is not supported raises an AttributeError with one sentence that says what to use
instead.
"""
