"""Where people walk next: the study of ETH/UCY with 20 hypotheses, by every rule of the library."""
