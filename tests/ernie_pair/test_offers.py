"""What `import ernie_pair` offers, at run time and to type checkers."""

import ast

from places import ROOT

import ernie_pair

SOURCE = ast.parse((ROOT / "ernie_pair" / "__init__.py").read_text(encoding="utf-8"))


def test_dunder_all_lists_the_offered_names_and_they_exist():
    assert ernie_pair.__all__ == sorted([*ernie_pair._OFFERED, "__version__"])
    for name in ernie_pair.__all__:
        assert getattr(ernie_pair, name) is not None and name in dir(ernie_pair)
    names: dict = {}
    exec("from ernie_pair import *", names)
    assert set(ernie_pair.__all__) <= set(names)


def test_type_checkers_see_the_lazily_imported_names():
    (guarded,) = (node for node in SOURCE.body if isinstance(node, ast.If))
    assert ast.unparse(guarded.test) == "TYPE_CHECKING"
    seen = {name.name: node.module for node in guarded.body for name in node.names}
    assert seen == ernie_pair._OFFERED


def test_only_light_modules_are_imported_eagerly():
    found = [node.module for node in SOURCE.body if isinstance(node, ast.ImportFrom)]
    ours = [module for module in found if module.startswith("ernie_pair")]
    assert ours == ["ernie_pair.runtime.cpu_env", "ernie_pair.runtime.paddle_version", "ernie_pair.version"]
