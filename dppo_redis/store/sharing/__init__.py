"""Files that processes of one user share on one host: a large publication is fetched once for all of them.

Not here: what a publication is, and who may publish. Redis alone says which weights are current.
"""
