"""`dppo-redis bench uneven`: environments whose steps take very different times."""
