"""Is a federation drifting, where in the spectrum, and which layers should be filtered?"""
