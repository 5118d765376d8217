"""Imports of every look at an extension, made once for all of them."""

import torch  # noqa: F401

import modules.api.app
import modules.assembly
import modules.ui.app  # noqa: F401
