"""HEARD: what each principal was shown, what of it is owed an outcome, and how the room looks from there."""
