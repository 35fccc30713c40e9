"""What everything stands on: errors, files, the command line, progress, pools of processes."""

import sys

if sys.argv[:1] == ["-m"]:  # of `python -m ernie_pair`, which puts the working folder first on the path
    from ernie_pair.core.run_module import leave_first_folder

    leave_first_folder()

import warnings

# Warnings of other libraries that a user cannot act on; both packages import this before all of them.
# The beginning of the warning, as a regular expression; what issues it, and when.
KNOWN = (
    r"Setuptools is replacing distutils",  # Paddle imports distutils before setuptools, at every start
    r"pkg_resources is deprecated as an API",  # jieba, when it is imported
    r"IProgress not found",  # tqdm, which PaddleNLP imports, in a notebook without ipywidgets
    r"No ccache found",  # Paddle 3 looks for a compiler's cache, at every start
    r"builtin type (SwigPyPacked|SwigPyObject|swigvarlink) has no __module__",  # faiss, sentencepiece
    r"Type google\._upb\._message\.\w+ uses PyType_Spec with a metaclass",  # protobuf, on Python 3.12
    # Paddle, when a static program is built of operators: one for each pair of operands.
    r"[\s\S]*The behavior of expression [\s\S]* has been unified with \w+\(X, Y, axis=-1\)",
)
for _beginning in KNOWN:
    warnings.filterwarnings("ignore", message=_beginning)
