"""A differing case made small: fewer requests, drafts, columns and ids, simpler values, with the same mismatch.

Nothing here knows what a pool is for. What belongs together is found in the pool: axes of one length, counts and the
flat axes they add up to, indices below a size. Every candidate is executed by the caller, who says whether it still
differs in the same way.
"""
