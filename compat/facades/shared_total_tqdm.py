"""`modules.shared_total_tqdm`: the progress bar of the terminal."""

from compat.facades.shared_state import TotalTQDM as TotalTQDM
