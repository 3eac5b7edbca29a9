"""`python -m jfluid script.py [arguments]` runs a script as `python script.py` does; `import paddle`
finds jfluid there, and in what the script starts.
"""

import sys

from jfluid.compat import scripts

if __name__ == "__main__":
    scripts.run(sys.argv[1:])
