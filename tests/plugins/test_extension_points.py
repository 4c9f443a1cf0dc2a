"""What a plugin overrides or calls of the classes that it builds on has a public name."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASES = [ROOT / "cloudspot" / "interfaces.py", *(ROOT / "cloudspot" / "plugin").glob("*.py")]
PLUGINS = [one for one in ROOT.glob("plugins/*/cloudspot_*/*.py") if not one.parent.name.endswith("_sandbox")]


def classes_of(paths):
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node


def base_names(node):
    for base in node.bases:
        inner = base.value if isinstance(base, ast.Subscript) else base
        yield inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names(node):
    """The private names that the class defines: its methods, and what it sets in itself."""
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef) and is_private(one.name):
            yield one.name
        elif isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and is_private(one.attr):
            yield one.attr


def used_names(node):
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef):
            yield one.name
        elif isinstance(one, ast.Attribute) and getattr(one.value, "id", "") == "self":
            yield one.attr


def test_no_plugin_overrides_or_calls_a_private_name_of_what_it_builds_on():
    private, found = {}, []
    for node in classes_of(BASES):
        private[node.name] = set(own_names(node))
    bases = {node.name: list(base_names(node)) for node in classes_of(BASES)}

    def inherited(name):
        return private.get(name, set()).union(*(inherited(one) for one in bases.get(name, ())))

    for node in classes_of(PLUGINS):
        theirs = set().union(*(inherited(one) for one in base_names(node)))
        found += [f"{node.name}.{one}" for one in sorted(theirs & set(used_names(node)))]
    assert len(private) > 20
    assert found == []
