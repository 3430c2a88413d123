"""The pedestrian study (ETH/UCY) with 20 hypotheses, for every rule of the library."""
