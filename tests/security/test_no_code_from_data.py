"""Nothing that a file or a peer holds is ever run: no pickles, no eval, no shell."""

import ast
from pathlib import Path

import moebench

SOURCE = Path(moebench.__file__).parent
BUILT_INS = {"eval", "exec", "compile", "__import__"}
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml", "joblib", "code"}
PICKLING = {
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list", "read_pickle", "to_pickle"),
}
OF_A_MODULE = {("torch", "load"), ("torch", "save"), ("os", "system"), ("os", "popen")}
SWITCHED_ON = {"allow_pickle", "shell"}
"""Options that are dangerous unless they are False."""


def forbidden(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [name.name for name in names if MODULES & set(name.name.split("."))]
            case ast.ImportFrom(module=module, names=names):
                found += sorted({*(module or "").split("."), *(name.name for name in names)} & (MODULES | PICKLING))
            case ast.Call(func=ast.Name(id=name)) if name in BUILT_INS:
                found.append(name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in OF_A_MODULE:
                found.append(f"{owner}.{name}")
            case ast.Attribute(attr=name) if name in PICKLING:
                found.append(name)
            case ast.keyword(arg=name, value=value) if name in SWITCHED_ON:
                found += [] if isinstance(value, ast.Constant) and value.value is False else [name]
    return found


def test_the_source_runs_no_code_from_data():
    sources = sorted(SOURCE.rglob("*.py"))
    assert len(sources) > 100
    assert {str(path): found for path in sources if (found := forbidden(ast.parse(path.read_text())))} == {}


def test_what_is_forbidden_is_found():
    text = """
import pickle, os
from torch.distributed import all_gather_object
from multiprocessing.reduction import pickle
torch.load(path); eval("1"); np.load(file, allow_pickle=True); dist.broadcast_object_list(x)
subprocess.run(command, shell=True); os.system("ls")
model.eval(); re.compile("a"); platform.system(); np.load(file, allow_pickle=False); json.load(file)
"""
    assert len(forbidden(ast.parse(text))) == 9
