"""Scripts of Python 2 in Python 3: as a diff, and written only where that is asked for."""

import ast
import runpy

import pytest

from jfluid import errors
from jfluid.command import doctor
from jfluid.doctor import examine, python2

SCRIPT = """\
import sys
import cPickle as pickle
reload(sys)
sys.setdefaultencoding("utf8")
import paddle.fluid as fluid

def train():
    d = {"a": 1}
    for key, value in d.iteritems():
\tprint "%s:" % key, value
    try:
        raise ValueError, "wrong"
    except ValueError, e:
        print >>sys.stderr, e, `d`
    if d.has_key("a") and 1 <> 2:
        exec "x = 07"
    return [i for i in xrange(3)], 7 / 2, raw_input("more?")
"""


def test_every_construct_becomes_python_3():
    after = python2.converted(SCRIPT, "old.py")
    ast.parse(after)
    assert 'print("%s:" % key, value)' in after and "except ValueError as e:" in after
    assert "import pickle" in after and "range(3)" in after and 'raise ValueError("wrong")' in after
    assert python2.converted(after, "new.py") == after


def test_python_3_stays_as_it_is():
    text = 'print("a", {1: 2}.items(), list(map(str, [1])), f"{1!r}")\nx: int = 1\n'
    assert python2.converted(text, "new.py") == text


def test_a_block_without_its_only_import_has_a_pass():
    guarded = "try:\n    from itertools import izip\nexcept ImportError:\n    izip = zip\n"
    text = guarded + "if 1:\n    from itertools import imap\n"
    after = python2.converted(text, "old.py")
    ast.parse(after)
    assert "try:\n    pass\nexcept" in after and after.endswith("if 1:\n    pass\n")


def test_a_diff_is_shown_and_nothing_is_written(tmp_path, capsys):
    script = tmp_path / "old.py"
    script.write_text(SCRIPT)
    assert doctor.main([str(tmp_path), "--fix-python2"]) == 1
    shown = capsys.readouterr().out
    assert "-    for key, value in d.iteritems():" in shown and "+    for key, value in" in shown
    assert f"{script}:17: a division" in shown and "--apply" in shown
    assert script.read_text() == SCRIPT and list(tmp_path.iterdir()) == [script]


def test_applying_keeps_the_old_script(tmp_path, capsys):
    script = tmp_path / "old.py"
    script.write_text(SCRIPT)
    assert examine([str(script)]).verdict.startswith("runs after")
    assert doctor.main([str(script), "--fix-python2", "--apply"]) == 0
    assert (tmp_path / "old.py.python2").read_text() == SCRIPT
    assert [f.code for f in examine([str(script)]).findings] == []
    script.write_text('print "again"\n')
    assert doctor.main([str(script), "--fix-python2", "--apply"]) == 2
    assert "in the way" in capsys.readouterr().err and script.read_text() == 'print "again"\n'


def test_an_undeclared_encoding_becomes_utf_8(tmp_path):
    script = tmp_path / "old.py"
    script.write_bytes('print "中文"\n'.encode("gbk"))
    assert doctor.main([str(script), "--fix-python2", "--apply"]) == 0
    assert script.read_text("utf-8") == 'print("中文")\n'
    runpy.run_path(str(script))


def test_what_no_python_reads_is_named(tmp_path, capsys):
    script = tmp_path / "old.py"
    script.write_text("def f(:\n")
    assert doctor.main([str(script), "--fix-python2", "--apply"]) == 2
    assert "old.py: neither Python 3 nor Python 2" in capsys.readouterr().err
    with pytest.raises(errors.DataError, match="no such file"):
        python2.conversions([str(tmp_path / "gone.py")])


def test_apply_needs_fix_python2(tmp_path, capsys):
    with pytest.raises(SystemExit):
        doctor.main([str(tmp_path), "--apply"])
    assert "--apply goes with --fix-python2" in capsys.readouterr().err
