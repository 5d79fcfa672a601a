"""
`python -m workers`.
"""

import sys

from workers.run import main

sys.exit(main())
