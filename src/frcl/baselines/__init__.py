"""The methods that FRCL is compared with: what they share is in common.py."""
