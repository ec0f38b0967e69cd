"""A module of a user's that cannot be imported."""

raise RuntimeError("the licence of the network has run out")
