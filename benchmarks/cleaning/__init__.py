"""Cleaning a compacted log, here and by a broker: the section ``clean`` puts together what these modules find."""
