"""
`python -m workers`.
"""

import sys

from controlplane.kit.loading import load

sys.exit(load("workers.run").main())
