"""Golden histories: what was once written must fold for ever."""
