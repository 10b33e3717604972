"""What segmentlog costs, measured together with its peers in the same run.

``python -m benchmarks`` runs every section, ``python -m benchmarks --help`` says the rest.
Nothing here is part of the product: the packages under test are imported, never changed.
"""
