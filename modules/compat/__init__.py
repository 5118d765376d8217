"""Names that extensions of the reference UI import, over our objects. `modules.NAME` is found in `compat/NAME.py`
(`modules.facades`); no file of ours imports from here. A name that is not supported raises an AttributeError with one
sentence that says what to use instead.
"""
