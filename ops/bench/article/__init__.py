"""The claims of the article that this product started from, each measured by a module of its own.

`docs/article.md` has the results. Not here: the peers (`ops/bench/peers`), what old data cost
(`ops/bench/staleness`).
"""
