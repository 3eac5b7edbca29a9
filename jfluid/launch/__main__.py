import sys

from jfluid.launch import main

sys.exit(main())
