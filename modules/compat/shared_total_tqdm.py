"""`modules.shared_total_tqdm`: the progress bar of the terminal."""

from modules.compat.shared_state import TotalTQDM as TotalTQDM
