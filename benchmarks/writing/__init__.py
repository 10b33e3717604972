"""Writing, part by part: the section ``write`` puts together what these modules find."""
