"""Python 3 reads it, and would stop there."""
import time
import sys
import cPickle  # expect: old-python
import urllib2  # expect: old-python
from itertools import izip  # expect: old-python

import numpy as np
import a_package_that_nobody_has  # expect: not-installed
import paddle.fluid as fluid

reload(sys)  # expect: old-python
sys.setdefaultencoding("utf8")  # expect: old-python
for i in xrange(3):  # expect: old-python
    start = time.clock()  # expect: old-python
d = {}
for key, value in d.iteritems():  # expect: old-python
    pass
if d.has_key("a"):  # expect: old-python
    pass
text = unicode("a")  # expect: old-python
ids = np.zeros([3], np.int)  # expect: old-numpy
mask = np.product([1])  # expect: old-numpy
try:
    range_ = xrange
except NameError:
    range_ = range
