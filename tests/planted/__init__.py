"""
Planted bugs: the suite's checks must fail with each of them. No product code knows of this.
"""
