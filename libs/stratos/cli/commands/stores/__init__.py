"""Commands of ``stratos admin`` about the stores themselves: set up, copied, backed up, put back."""
