"""Watched imports are as unwatched ones: values, loaders, tracebacks, warnings."""

from __future__ import annotations

from tests.gpu_select.watched import watched

IMPORTS = """
    import importlib, importlib.util, runpy, threading, traceback, warnings, zipimport

    class Shared:
        "A finder that is the loader of many modules, as pytest's is."
        def find_spec(self, name, path=None, target=None):
            if name.startswith("shared"):
                return importlib.util.spec_from_loader(name, self)
        def create_module(self, spec):
            return None
        def exec_module(self, module):
            module.made = module.__name__
            if module.__name__ == "shared_outer":
                import shared_inner

    shared = Shared()
    sys.meta_path.append(shared)

    def failure(name):
        try:
            exec(f'import {name}')
        except Exception as error:
            return traceback.format_exc()

    def everything():
        found = {}
        import plain, package.part, shared_outer
        found["plain"] = sorted(vars(plain.__loader__)), plain.__spec__.name
        found["shared"] = vars(shared), sys.modules["shared_inner"].made
        found["failing"] = failure("failing")
        found["missing"] = failure("missing")
        found["lacking"] = failure("lacking")
        found["no_syntax"] = failure("no_syntax")
        found["again"] = importlib.reload(plain) is plain
        spec = importlib.util.find_spec("unused")
        found["spec"] = spec.origin, "unused" in sys.modules
        spec = importlib.util.find_spec("lazy")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found["lazy"] = module.value
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import warning
        found["warned"] = [each.filename for each in caught]
        found["run"] = runpy.run_module("plain")["value"]
        sys.path.append(str(folder / "archive.zip"))
        import zipped_outer
        found["zipped"] = zipped_outer.value, sorted(vars(zipped_outer.__loader__))
        names = [f"thread_{number}" for number in range(8)]
        threads = [threading.Thread(target=__import__, args=(n,)) for n in names]
        [each.start() for each in threads]
        [each.join() for each in threads]
        found["threads"] = [sys.modules[name].value for name in names]
        found["builtin"] = __import__("_bisect").__name__
        return {key: str(value) for key, value in found.items()}

    import zipfile
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("zipped_outer.py", "from zipped_inner import value")
        archive.writestr("zipped_inner.py", "value = 5")
"""
MODULES = {
    "plain.py": "value = 1",
    "package/__init__.py": "",
    "package/part.py": "value = 2",
    "failing.py": "import plain\n1 / 0",
    "lacking.py": "import nowhere_at_all",
    "no_syntax.py": "def",
    "lazy.py": "value = 3",
    "unused.py": "",
    "warning.py": "import warnings\nwarnings.warn('careful', stacklevel=2)",
    **{f"thread_{number}.py": f"value = {number}" for number in range(8)},
}


def test_imports_work_as_they_did():
    """All kinds of imports give the same values, tracebacks and loaders as without."""
    with_and_without = [
        watched(f"{IMPORTS}\n    {first}\n    show(everything(), places())", MODULES)
        for first in ("watch()", "pass")
    ]
    (seen, _), (expected, _) = (each.json() for each in with_and_without)
    folders = [
        each["spec"].split("'")[1].removesuffix("/unused.py")
        for each in (seen, expected)
    ]
    for key, value in expected.items():
        assert seen[key].replace(folders[0], "") == value.replace(folders[1], ""), key
